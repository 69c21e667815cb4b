/* The heaviest bodies, see heavy.c. */
#ifndef SPEED_HEAVY_H
#define SPEED_HEAVY_H

#include "wire.h"

void run_heavy(struct how *how, const char *shape);

#endif
