/* chat_names.c: the words that callers use for roles, tasks, effort and releases. */
#define _GNU_SOURCE /* memmem */
#include <stdlib.h>
#include <string.h>

#include "text/chat.h"

typedef struct name_value {
    const char *name;
    int value;
} name_value;

/* Index into table, or -1. */
static int look_up(const name_value *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(table[i].name, name))
            return (int)i;
    return -1;
}

#define LOOK_UP(table, name) look_up(table, sizeof table / sizeof table[0], name)

/* Decimal 0..100 without sign, else -1. */
static int percent(const char *s)
{
    int v = 0;
    for (const char *p = s; *p; p++) {
        if (*p < '0' || *p > '9' || p - s >= 3)
            return -1;
        v = v * 10 + (*p - '0');
    }
    return *s && v <= 100 ? v : -1;
}

int chat_effort_parse(const char *name, enum chat_effort *out, ds4_err *e)
{
    static const name_value table[] = {
        {"none", CHAT_EFFORT_OFF},    {"off", CHAT_EFFORT_OFF},   {"disabled", CHAT_EFFORT_OFF},
        {"minimal", CHAT_EFFORT_OFF}, {"low", CHAT_EFFORT_LOW},   {"medium", CHAT_EFFORT_LOW},
        {"default", CHAT_EFFORT_LOW}, {"high", CHAT_EFFORT_HIGH}, {"xhigh", CHAT_EFFORT_MAX},
        {"max", CHAT_EFFORT_MAX},
    };
    int i = LOOK_UP(table, name), v = percent(name);
    if (i >= 0)
        *out = (enum chat_effort)table[i].value;
    else if (v >= 0)
        *out = v == 0 ? CHAT_EFFORT_OFF : v < 60 ? CHAT_EFFORT_LOW : v < 90 ? CHAT_EFFORT_HIGH : CHAT_EFFORT_MAX;
    else
        return ds4_fail(e, DS4_EARG,
                        "reasoning effort \"%.40s\" is unknown; use none, low, medium, high, max or 0 to 100", name);
    return 0;
}

int chat_release_parse(const char *name, enum chat_release *out, ds4_err *e)
{
    static const name_value table[] = {{"preview", CHAT_PREVIEW}, {"0731", CHAT_0731}};
    int i = LOOK_UP(table, name);
    if (i < 0)
        return ds4_fail(e, DS4_EARG, "release \"%.40s\" is unknown; use preview or 0731", name);
    *out = (enum chat_release)table[i].value;
    return 0;
}

int chat_role_parse(const char *name, enum chat_role *out, ds4_err *e)
{
    static const name_value table[] = {
        {"system", CHAT_SYSTEM}, {"user", CHAT_USER},                {"assistant", CHAT_ASSISTANT},
        {"tool", CHAT_TOOL},     {"latest_reminder", CHAT_REMINDER}, {"developer", CHAT_DEVELOPER},
    };
    int i = LOOK_UP(table, name);
    if (i < 0)
        return ds4_fail(e, DS4_EARG,
                        "role \"%.40s\" is unknown; use system, user, assistant, tool, latest_reminder or developer",
                        name);
    *out = (enum chat_role)table[i].value;
    return 0;
}

int chat_task_parse(const char *name, enum chat_task *out, ds4_err *e)
{
    static const name_value table[] = {
        {"action", CHAT_ACTION}, {"query", CHAT_QUERY}, {"authority", CHAT_AUTHORITY},
        {"domain", CHAT_DOMAIN}, {"title", CHAT_TITLE}, {"read_url", CHAT_READ_URL},
    };
    int i = LOOK_UP(table, name);
    if (i < 0)
        return ds4_fail(e, DS4_EARG,
                        "task \"%.40s\" is unknown; use action, query, authority, domain, title or read_url", name);
    *out = (enum chat_task)table[i].value;
    return 0;
}

enum chat_release chat_release_guess(const gguf *g)
{
    static const char *const keys[] = {"general.name", "general.version", "general.basename",
                                       "general.base_model.0.name", "general.base_model.0.version"};
    const char *path = gguf_path(g), *slash = strrchr(path, '/');
    if (strstr(slash ? slash : path, "0731"))
        return CHAT_0731;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        gguf_str s = {NULL, 0};
        if (!gguf_get_str(g, keys[i], false, &s, NULL) && s.n && memmem(s.p, s.n, "0731", 4))
            return CHAT_0731;
    }
    return CHAT_PREVIEW;
}

enum protocol_part chat_effort_text(const chat_opts *o)
{
    if (!o->thinking || o->effort == CHAT_EFFORT_OFF || o->effort == CHAT_EFFORT_DEFAULT)
        return PROTO_COUNT;
    if (o->release == CHAT_PREVIEW)
        return o->effort == CHAT_EFFORT_MAX ? PROTO_EFFORT_HIGH : PROTO_COUNT;
    if (o->effort == CHAT_EFFORT_LOW)
        return PROTO_EFFORT_LOW;
    return o->effort == CHAT_EFFORT_HIGH ? PROTO_EFFORT_HIGH : PROTO_EFFORT_MAX;
}
