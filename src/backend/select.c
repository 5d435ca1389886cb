#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_open.h"
#ifdef DS4_HAVE_CUDA
#include "backend/cuda/cuda_open.h"
#endif

static int open_cuda(backend **out, const backend_options *o, ds4_err *e)
{
#ifdef DS4_HAVE_CUDA
    return cuda_open(out, o, e);
#else
    (void)out, (void)o;
    return ds4_fail(e, DS4_EARG,
                    "backend \"cuda\": this program was built without CUDA; use \"cpu\" or build with `make cuda`");
#endif
}

static int open_best(backend **out, const backend_options *o, ds4_err *e)
{
#ifdef DS4_HAVE_CUDA
    if (cuda_open(out, o, NULL) == 0)
        return 0;
#endif
    return cpu_open(out, o, e);
}

static int open_named(backend **out, const backend_options *o, ds4_err *e)
{
    if (!o->name)
        return open_best(out, o, e);
    if (strcmp(o->name, "cpu") == 0)
        return cpu_open(out, o, e);
    if (strcmp(o->name, "cuda") == 0)
        return open_cuda(out, o, e);
    return ds4_fail(e, DS4_EARG, "backend \"%s\": unknown; expected \"cpu\" or \"cuda\"", o->name);
}

int backend_open(backend **out, const backend_options *o, ds4_err *e)
{
    *out = NULL;
    int rc = open_named(out, o, e);
    if (!rc)
        (*out)->act = o->act;
    return rc;
}
