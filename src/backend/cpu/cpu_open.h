/* cpu_open.h: the CPU backend's door, used by backend/select.c. */
#ifndef DS4_BACKEND_CPU_OPEN_H
#define DS4_BACKEND_CPU_OPEN_H

#include "backend/backend.h"

/* o->threads: 0 = all cores that this process may use. The backend is freed by op->close. */
int cpu_open(backend **out, const backend_options *o, ds4_err *e);

#endif
