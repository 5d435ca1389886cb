#include "text/chat_turns.h"

#include <stdlib.h>
#include <string.h>

/* A call of the newest assistant message that made any, and its place among them. */
typedef struct called {
    chat_str id;
    size_t at;
} called;

/* A tool result to be put in order: the place of its call, then its own. */
typedef struct result {
    size_t call, at;
    const chat_msg *msg;
} result;

typedef struct order {
    called *call;
    size_t n;
    result *result; /* scratch */
} order;

static int compare_str(chat_str a, chat_str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0;
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int by_id(const void *pa, const void *pb)
{
    const called *a = pa, *b = pb;
    int c = compare_str(a->id, b->id);
    return c ? c : (a->at > b->at) - (a->at < b->at);
}

static int by_call(const void *pa, const void *pb)
{
    const result *a = pa, *b = pb;
    if (a->call != b->call)
        return a->call < b->call ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

/* Remembers the calls of an assistant message; of two calls with one id the later counts. o->call has room for them. */
static void order_learn(order *o, const chat_msg *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n_calls; i++)
        if (m->call[i].id.n)
            o->call[n++] = (called){m->call[i].id, i};
    if (n)
        qsort(o->call, n, sizeof *o->call, by_id);
    o->n = 0;
    for (size_t i = 0; i < n; i++)
        if (i + 1 == n || compare_str(o->call[i].id, o->call[i + 1].id))
            o->call[o->n++] = o->call[i];
}

/* Place of the call with this id; an unknown one counts as the first. */
static size_t order_find(const order *o, chat_str id)
{
    size_t lo = 0, hi = o->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = compare_str(id, o->call[mid].id);
        if (!c)
            return o->call[mid].at;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return 0;
}

/* Sorts the tool results among part[0..n) by their calls; they share the places they had, user parts stay where they
 * are. */
static void order_apply(order *o, const chat_msg **part, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (part[i]->role == CHAT_TOOL) {
            o->result[k] = (result){order_find(o, part[i]->call_id), k, part[i]};
            k++;
        }
    if (k < 2 || !o->n)
        return;
    qsort(o->result, k, sizeof *o->result, by_call);
    k = 0;
    for (size_t i = 0; i < n; i++)
        if (part[i]->role == CHAT_TOOL)
            part[i] = o->result[k++].msg;
}

static bool is_user_part(const chat_msg *m) { return m->role == CHAT_USER || m->role == CHAT_TOOL; }

/* Groups messages into turns: a user turn goes on until another role comes or a part carries a task. */
static void merge(turns *t, const chat_msg *msg, size_t n, order *o)
{
    size_t i = 0;
    while (i < n) {
        turn *u = &t->turn[t->n++];
        *u = (turn){msg[i].role, t->part + i, 1, msg[i].task};
        t->part[i] = &msg[i];
        size_t from = i++;
        if (msg[from].role == CHAT_ASSISTANT && msg[from].n_calls)
            order_learn(o, &msg[from]);
        if (!is_user_part(&msg[from]))
            continue;
        u->role = CHAT_USER;
        for (; i < n && is_user_part(&msg[i]) && u->task == CHAT_NO_TASK; i++) {
            t->part[i] = &msg[i];
            u->task = msg[i].task;
        }
        u->n = i - from;
        order_apply(o, t->part + from, u->n);
    }
}

static ptrdiff_t last_user(const turns *t)
{
    ptrdiff_t i = (ptrdiff_t)t->n - 1;
    while (i >= 0 && t->turn[i].role != CHAT_USER && t->turn[i].role != CHAT_DEVELOPER)
        i--;
    return i;
}

static void remove_old_developers(turns *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++)
        if ((ptrdiff_t)i >= t->last || t->turn[i].role != CHAT_DEVELOPER)
            t->turn[kept++] = t->turn[i];
    t->n = kept;
    t->last = last_user(t);
}

void turns_free(turns *t)
{
    free(t->turn);
    free(t->part);
    *t = (turns){0};
}

int turns_make(turns *t, const chat_msg *msg, size_t n, bool dropping, ds4_err *e)
{
    size_t most_calls = 0;
    *t = (turns){.drop = dropping};
    for (size_t i = 0; i < n; i++) {
        if (msg[i].n_calls > most_calls)
            most_calls = msg[i].n_calls;
        if (msg[i].n_tools)
            t->drop = false;
    }
    order o = {0};
    t->turn = calloc(n + 1, sizeof *t->turn);
    t->part = calloc(n + 1, sizeof *t->part);
    o.call = calloc(most_calls + 1, sizeof *o.call);
    o.result = calloc(n + 1, sizeof *o.result);
    bool ok = t->turn && t->part && o.call && o.result;
    if (ok) {
        merge(t, msg, n, &o);
        t->last = last_user(t);
        if (t->drop)
            remove_old_developers(t);
    }
    free(o.call);
    free(o.result);
    if (ok)
        return 0;
    turns_free(t);
    return ds4_fail(e, DS4_ENOMEM, "out of memory for %zu messages", n);
}
