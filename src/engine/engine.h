/* engine.h: inside of the public objects; shared by the files of this room only. */
#ifndef DS4_ENGINE_ENGINE_H
#define DS4_ENGINE_ENGINE_H

#include "ds4.h"
#include "file/gguf.h"
#include "model/model.h"
#include "session/session.h"
#include "spec/cycle.h"
#include "text/vocab.h"

struct ds4_engine {
    ds4_engine_options o; /* copies of the caller's; strings are owned below */
    gguf *trunk, *drafter;
    uint8_t *made[2]; /* what they point into if they are synthetic */
    vocab *words;
    backend *b;
    model m;
    kv k;
    ds4_stats stats;
    sched sched;
    dspark ds;
    bool has_dspark;
    cycle c;
    int ctx;
    bool *slot_used;    /* [sessions] */
    ds4_session *owner; /* whose logits stand in scratch, or NULL */
    bool measured;      /* cost table filled */
};

struct ds4_session {
    ds4_engine *e;
    session s;
};

/* Marks s as the one whose rows will stand in scratch; the previous owner's logits are gone. */
void engine_own(ds4_session *s);
#endif
