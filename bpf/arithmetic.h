/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Which slot of a histogram a time falls into. Neither maps nor kernel types: both tiers use it. */
#ifndef SITS_ARITHMETIC_H
#define SITS_ARITHMETIC_H

#include "layout.h"

/* floor(log2(v)) for v > 0, without a loop or a branch */
static __always_inline u32 log2_of(u64 v)
{
	u32 r, shift;

	r = (v > 0xffffffffULL) << 5;
	v >>= r;
	shift = (v > 0xffff) << 4;
	v >>= shift;
	r |= shift;
	shift = (v > 0xff) << 3;
	v >>= shift;
	r |= shift;
	shift = (v > 0xf) << 2;
	v >>= shift;
	r |= shift;
	shift = (v > 0x3) << 1;
	v >>= shift;
	r |= shift;
	return r | (v >> 1);
}

static __always_inline u64 histogram_slot(u64 ns)
{
	u64 bit, slot; /* 64 bits wide: verifiers up to 6.1 lose the bounds of a narrower copy */

	if (ns < (1ULL << HIST_FIRST_BIT))
		return 0;
	if (ns >= (1ULL << HIST_LAST_BIT))
		return HIST_SLOTS - 1;
	bit = log2_of(ns);
	slot = 1 + (bit - HIST_FIRST_BIT) * 8 + ((ns >> (bit - 3)) & 7);
	barrier_var(slot); /* keeps the caller's bounds check, which the verifier needs to see */
	return slot;
}

#endif
