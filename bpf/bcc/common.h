/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs of the tier without BTF share. bcc compiles them against the running kernel's
 * headers, behind bpf/layout.h and bpf/arithmetic.h; the maps are those that the agent has made and
 * pinned, so that the same readers read both tiers. PINS, MAX_TARGETS and POSSIBLE_CPUS are filled
 * in by bpf/bcc_tier.py. */
#include <linux/cgroup-defs.h>
#include <linux/kernfs.h>
#include <linux/sched.h>

BPF_TABLE_PINNED("array", u32, struct target, targets, MAX_TARGETS, PINS "targets");
BPF_TABLE_PINNED("array", u32, struct counters, counters, MAX_TARGETS * POSSIBLE_CPUS,
		 PINS "counters", BPF_F_MMAPABLE);

#define ADD(field, n) __sync_fetch_and_add(&(field), (n))
#define FETCH(to, from) bpf_probe_read_kernel(&(to), sizeof(to), &(from))

static __always_inline struct counters *counters_of(u32 slot)
{
	u32 row = slot * POSSIBLE_CPUS + bpf_get_smp_processor_id();

	return counters.lookup(&row);
}

static __always_inline u64 id_of(struct cgroup *cgroup)
{
	struct kernfs_node *node = NULL;
	u64 id = 0;

	FETCH(node, cgroup->kn);
	FETCH(id, node->id);
	return id;
}
