/* util_json.h: golden data and scratch files for the tests of the JSON room. */
#ifndef TESTS_JSON_UTIL_JSON_H
#define TESTS_JSON_UTIL_JSON_H

#include "base/err.h"
#include "json/chat_json.h"
#include "json/pyjson.h"
#include "util/npy.h" /* golden_dir */
#include "util/unit.h"

char *read_all(const char *dir, const char *name, size_t *n); /* terminated; the caller frees */

/* Defaults of the tests: thinking, dropping, no effort, 0731. */
chat_opts defaults_with(const protocol *p);

/* Renders a document given as text; fails the test on an error. The caller frees. */
char *render(const char *json, const chat_opts *o);
/* The error of a document that must not render. */
const char *render_error(const char *json, const chat_opts *o, ds4_err *e);

#endif
