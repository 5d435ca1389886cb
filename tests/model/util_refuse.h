/* util_refuse.h: opening changed copies of the tiny model and looking at what the loader says. */
#ifndef TESTS_MODEL_UTIL_REFUSE_H
#define TESTS_MODEL_UTIL_REFUSE_H

#include "util/v4_rig.h"

/* Opens trunk and drafter (NULL: none) as a model and closes everything again. Returns the code; the line is in e->msg,
 * shape (may be NULL) gets what was read on success. */
int try_model(const gb *trunk, const gb *drafter, shape *s, drafter_shape *ds, ds4_err *e);

/* The model must be refused with a single line that contains each of the given words (a list ended by NULL). */
void expect_refusal(const gb *trunk, const gb *drafter, const char *const words[]);
#define REFUSED(trunk, drafter, ...) expect_refusal(trunk, drafter, (const char *const[]){__VA_ARGS__, NULL})

#endif
