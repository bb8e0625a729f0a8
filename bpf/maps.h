/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The maps our objects share: the loader makes each once and hands it to every object that names
 * it. Sizes of 1 here are set by the loader from the policy and the number of possible CPUs. */
#ifndef SITS_MAPS_H
#define SITS_MAPS_H

#include "arithmetic.h"
#include "layout.h"

/* one row a target: its thresholds. Row 0 stands for everything that is not watched. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct target);
} targets SEC(".maps");

/* [target * possible CPUs + CPU]: mapped into the controller, which reads it without a system call */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* [CPU]: what our own limits cost */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct health);
} health SEC(".maps");

/* thresholds crossed; the controller sleeps on it */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} edges SEC(".maps");

/* [0]: raised by the agent whenever it changes what is whose: cgroups, processes or ports */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} generation SEC(".maps");

/* number of possible CPUs: the counters' stride */
const volatile u32 possible_cpus = 1;
/* rows in the target maps */
const volatile u32 max_targets = 1;

/* names the ring's records in our BTF, where tests read their size */
const struct edge *const btf_edge = NULL;

#define EDGE_EVERY_NS 1000000

static __always_inline struct counters *counters_of(u32 slot)
{
	u32 row = slot * possible_cpus + bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&counters, &row);
}

static __always_inline u32 generation_now(void)
{
	u32 zero = 0;
	u64 *now_at = bpf_map_lookup_elem(&generation, &zero);

	return now_at ? *now_at : 0;
}

static __always_inline struct health *health_here(void)
{
	u32 row = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&health, &row);
}

/* Streams are counted in softirq too, which can interrupt us on this CPU: add atomically there. */
#define ADD(field, n) __sync_fetch_and_add(&(field), (n))

/* At most one edge a millisecond for each target and CPU: it is a wake-up, not a measurement. */
static __always_inline void raise_edge(struct counters *c, u32 slot, u32 kind, u64 now, u64 value)
{
	struct edge *edge;

	if (now - c->edge_ns < EDGE_EVERY_NS)
		return;
	c->edge_ns = now;
	edge = bpf_ringbuf_reserve(&edges, sizeof(*edge), 0);
	if (!edge) {
		struct health *h = health_here();

		if (h)
			ADD(h->edge_drops, 1);
		return;
	}
	edge->at_ns = now;
	edge->value_ns = value;
	edge->slot = slot;
	edge->kind = kind;
	bpf_ringbuf_submit(edge, 0);
}

/* A length from 1 to `most`, a power of two, in a way that verifiers up to 6.1 follow: they learn
 * nothing from a comparison with zero. Changes no length that is in range. */
static __always_inline u64 bounded(u64 len, u64 most)
{
	len--;
	barrier_var(len);
	return (len & (most - 1)) + 1;
}

#endif
