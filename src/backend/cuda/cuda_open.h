/* cuda_open.h: the CUDA backend's door, used by backend/select.c. */
#ifndef DS4_BACKEND_CUDA_CUDA_OPEN_H
#define DS4_BACKEND_CUDA_CUDA_OPEN_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"

/* Opens the first visible device. Without a device, or with a driver older than the runtime: DS4_EBACKEND and a line
 * that says which. The backend is freed by op->close. */
int cuda_open(backend **out, const backend_options *o, ds4_err *e);

/* For tests: the k-th call of the CUDA runtime from now on (launches, transfers, waits) fails; 0: none does. */
void cuda_fault_after(backend *b, int k);

#ifdef __cplusplus
}
#endif

#endif
