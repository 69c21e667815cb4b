/* Many connections in one loop, see conns.c. */
#ifndef SPEED_CONNS_H
#define SPEED_CONNS_H

#include "wire.h"

void run_conns(const struct how *how, uint32_t n);
void run_paced(const struct how *how, uint32_t n);

#endif
