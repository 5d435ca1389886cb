/* clock.h: time for measurements. */
#ifndef DS4_BASE_CLOCK_H
#define DS4_BASE_CLOCK_H

/* Seconds since an arbitrary start; never goes back, is not moved by clock adjustment. */
double clock_now(void);

#endif
