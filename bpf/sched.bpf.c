// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Run-queue delay: how long a watched task was runnable before it ran, and who held the CPU.
 *
 * The scheduler itself notes since when each task is runnable (`sched_info`), so nothing of ours runs
 * at a wake-up. At a switch interrupts are off (the tracepoint sits under the run-queue lock), so a
 * plain += on this CPU's own row loses nothing.
 */
#include "maps.h"

char LICENSE[] SEC("license") = "GPL";

/* set by the loader from the running kernel */
const volatile bool have_task_storage = true;
const volatile bool have_prev_state = true;
const volatile bool cpu_on_v1 = false;

/* what we know of one task; cgroups and generation say whether `slot` is still true */
struct task_state {
	u64 told_ns; /* how much of the waits that the scheduler accounts to it is told */
	u64 cgroups; /* where the kernel keeps which it is in: the task is there, or moved */
	u32 slot;
	u32 generation;
	u64 role_ns; /* when its role was last looked up */
	u32 role; /* row in `roles`, 0: none */
	u32 pad;
};

/* a task's state lives and dies with the task (kernels from 5.12) */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} known_tasks SEC(".maps");

/* the same where there is no task storage: by thread id, removed when the thread dies */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, struct task_state);
} known_tasks_by_pid SEC(".maps");

/* who came on this CPU last, so that who leaves it need not be looked up */
struct running {
	u64 since_ns;
	u32 pid;
	u32 slot; /* 0: nobody's */
	u32 generation;
	u32 role; /* row in `roles`, 0: none */
};

/* [0]: this CPU's */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct running);
} running SEC(".maps");

/* cgroup id in the hierarchy that rules the CPU -> target */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u32);
} cpu_cgroups SEC(".maps");

/* process id -> target, for targets that share their cgroup with others */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} processes SEC(".maps");

/* one histogram a target and CPU */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct histogram);
} wait_histograms SEC(".maps");

/* a target's threads by name -> row in `roles` */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ROLES);
	__type(key, struct role_key);
	__type(value, u32);
} role_rows SEC(".maps");

/* [row * possible CPUs + CPU]; row 0 is nobody's */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct role);
} roles SEC(".maps");

/* row -> whose; a row is taken by who puts it in here first */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ROLES);
	__type(key, u32);
	__type(value, struct role_key);
} role_names SEC(".maps");

/* [0]: where to look for a free row */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} last_role SEC(".maps");

/* who held the CPU, the least recent forgotten when full */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct culprit_key);
	__type(value, struct culprit);
} culprits SEC(".maps");

/* include/linux/sched.h since 4.14 (8ef9925b02c2): the thread's last switch */
#define TASK_DEAD 0x80

/* a thread gets its name after it has started: look again now and then */
#define ROLE_EVERY_NS 1000000000
#define ROLE_TRIES 4

/* shorter waits are the scheduler's daily work, not worth naming a culprit for */
#define BLAME_FROM_NS 100000

/* Now, by the clock of the run queue that the task is on. The scheduler has just read it: to read
 * the time ourselves would be a third of what a switch costs. It is no CLOCK_MONOTONIC; only
 * differences are of use, and between CPUs they are as exact as the scheduler's own. */
static __always_inline u64 clock_of(struct task_struct *task)
{
	/* without group scheduling (CONFIG_FAIR_GROUP_SCHED) there is no way to it from a task */
	if (bpf_core_field_exists(task->se.cfs_rq) && bpf_core_field_exists(struct cfs_rq, rq))
		return task->se.cfs_rq->rq->clock;
	return bpf_ktime_get_ns();
}

/* Whether the scheduler says since when the task is runnable, as it does until it has come on. Where
 * CONFIG_SCHED_INFO is not, which every distribution's kernel has, no wait is told. */
static __always_inline bool is_queued(struct task_struct *task)
{
	return bpf_core_field_exists(task->sched_info.last_queued) && task->sched_info.last_queued;
}

/* For how long the task has waited for a CPU in all its life, but for the wait it is in. */
static __always_inline u64 waited_before(struct task_struct *task)
{
	return bpf_core_field_exists(task->sched_info.run_delay) ? task->sched_info.run_delay : 0;
}

/* From one reading to a later one; those of two CPUs may be the wrong way round by a little. */
static __always_inline u64 between(u64 earlier, u64 later)
{
	return later > earlier ? later - earlier : 0;
}

static __always_inline u64 cpu_cgroup_of(struct task_struct *task)
{
	/* on v1 the hierarchy that holds the cpu controller counts, not the (often empty) v2 tree */
	if (cpu_on_v1) {
		u32 cpu = bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);

		/* the verifier knows the index, so these are four loads and no calls */
		return task->cgroups->subsys[cpu & 15]->cgroup->kn->id;
	}
	return task->cgroups->dfl_cgrp->kn->id;
}

static __always_inline struct task_state *state_of(struct task_struct *task)
{
	if (have_task_storage) {
		return bpf_task_storage_get(&known_tasks, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	} else {
		struct task_state fresh = {};
		struct task_state *state;
		u32 pid = task->pid;

		state = bpf_map_lookup_elem(&known_tasks_by_pid, &pid);
		if (state)
			return state;
		bpf_map_update_elem(&known_tasks_by_pid, &pid, &fresh, BPF_NOEXIST);
		return bpf_map_lookup_elem(&known_tasks_by_pid, &pid);
	}
}

/* The target a task belongs to, 0 for none. Looked up again only when the task changed its cgroup
 * or the agent changed the targets. */
static __always_inline u32 slot_of(struct task_struct *task, struct task_state *state, u32 now_at)
{
	u64 cgroups = (u64)task->cgroups, cgroup;
	u32 tgid = task->tgid;
	u32 *slot;

	if (state->cgroups == cgroups && state->generation == now_at)
		return state->slot;
	cgroup = cpu_cgroup_of(task);
	slot = bpf_map_lookup_elem(&processes, &tgid);
	if (!slot)
		slot = bpf_map_lookup_elem(&cpu_cgroups, &cgroup);
	/* waits that ended before now were another target's, or nobody's */
	state->told_ns = waited_before(task);
	state->role_ns = 0;
	state->cgroups = cgroups;
	state->generation = now_at;
	state->slot = slot && *slot < max_targets ? *slot : 0;
	return state->slot;
}

static __always_inline void blame(struct task_struct *holder, u32 slot, u64 wait)
{
	struct culprit_key key = { .slot = slot, .cgroup = cpu_cgroup_of(holder) };
	struct culprit *culprit = bpf_map_lookup_elem(&culprits, &key);

	if (!culprit) {
		struct culprit fresh = {};

		bpf_map_update_elem(&culprits, &key, &fresh, BPF_NOEXIST);
		culprit = bpf_map_lookup_elem(&culprits, &key);
		if (!culprit) {
			struct health *h = health_here();

			if (h)
				ADD(h->culprits_full, 1);
			return;
		}
	}
	ADD(culprit->wait_ns, wait);
	ADD(culprit->waits, 1);
	if (wait > culprit->worst_ns) {
		culprit->worst_ns = wait;
		bpf_probe_read_kernel_str(culprit->comm, sizeof(culprit->comm), holder->comm);
	}
}

static __always_inline void note_no_role(void)
{
	struct health *h = health_here();

	if (h)
		ADD(h->roles_full, 1);
}

/* Threads and culprits are told of engines only. Hundreds of neighbours would fill the tables and
 * push the engines' out. */
static __always_inline bool is_engine(u32 slot)
{
	struct target *target = bpf_map_lookup_elem(&targets, &slot);

	return target && target->kind == TARGET_ENGINE;
}

/* The row that counts for this thread's name: looked up once a second, given out when it is new. No
 * part of the switch, where its code would stand twice. */
static __noinline void find_role(struct task_struct *task, struct task_state *state, u64 now)
{
	struct role_key key = { .slot = state->slot };
	u32 zero = 0, fresh, i;
	u32 *row, *last;

	state->role_ns = now;
	state->role = 0;
	if (!is_engine(state->slot))
		return;
	bpf_probe_read_kernel_str(key.comm, sizeof(key.comm), task->comm);
	row = bpf_map_lookup_elem(&role_rows, &key);
	if (row) {
		state->role = *row;
		return;
	}
	last = bpf_map_lookup_elem(&last_role, &zero);
	if (!last)
		return;
	/* another CPU may be at it too; whoever puts a row into role_names first has it */
	for (i = 0; i < ROLE_TRIES; i++) {
		fresh = *last % (MAX_ROLES - 1) + 1;
		*last = fresh;
		if (bpf_map_update_elem(&role_names, &fresh, &key, BPF_NOEXIST))
			continue;
		if (!bpf_map_update_elem(&role_rows, &key, &fresh, BPF_NOEXIST)) {
			state->role = fresh;
			return;
		}
		/* another CPU was first with this name, or there is no room */
		bpf_map_delete_elem(&role_names, &fresh);
		row = bpf_map_lookup_elem(&role_rows, &key);
		if (row)
			state->role = *row;
		else
			note_no_role();
		return;
	}
	note_no_role();
}

static __always_inline struct role *role_here(u32 role)
{
	u32 row = role * possible_cpus + bpf_get_smp_processor_id();

	return role ? bpf_map_lookup_elem(&roles, &row) : NULL;
}

/* The row in `roles` of a watched task. */
static __always_inline u32 role_of(struct task_struct *task, struct task_state *state, u64 now)
{
	if (!state->role_ns || between(state->role_ns, now) > ROLE_EVERY_NS)
		find_role(task, state, now);
	return state->role;
}

/* The task's state if its target is watched. Idle tasks are nobody's. */
static __always_inline struct task_state *watched(struct task_struct *task, u32 now_at)
{
	struct task_state *state;

	if (!task->pid)
		return NULL;
	state = state_of(task);
	if (!state) {
		struct health *h = health_here();

		if (h)
			ADD(h->storage_full, 1);
		return NULL;
	}
	return slot_of(task, state, now_at) ? state : NULL;
}

static __always_inline void ran(struct counters *c, u32 role, u64 ns, bool runnable)
{
	struct role *r = role_here(role);

	c->run_ns += ns;
	c->involuntary += runnable;
	if (r) {
		r->run_ns += ns;
		r->involuntary += runnable;
	}
}

/* Somebody else's task, of the target in `slot` or of none, was in the way. */
static __always_inline void held_by_other(struct counters *c, u32 slot, struct task_struct *holder,
					  u64 wait)
{
	struct target *target = bpf_map_lookup_elem(&targets, &slot);

	if (!target)
		return;
	if (holder->pid && wait >= BLAME_FROM_NS && target->kind == TARGET_ENGINE)
		blame(holder, slot, wait);
	/* what its own tasks do to each other nobody can help it with */
	if (target->wait_edge_ns && wait >= target->wait_edge_ns) {
		c->waits_over++;
		raise_edge(c, slot, EDGE_WAIT, bpf_ktime_get_ns(), wait);
	}
}

/* A task that comes on has waited for `holder` to leave the CPU, which it had for the target in
 * `holder_slot`. For how long is what the scheduler is about to account to it, `sched_info_arrive`,
 * with what it accounted when the task was moved to this CPU while it waited. */
static __always_inline void waited(struct counters *c, struct task_struct *task,
				   struct task_state *state, struct task_struct *holder,
				   u32 holder_slot, u64 now)
{
	u64 accounted = waited_before(task) + between(task->sched_info.last_queued, now);
	u64 wait = between(state->told_ns, accounted), bucket;
	u32 slot = state->slot;
	bool own = holder_slot == slot;
	struct histogram *h = bpf_map_lookup_elem(&wait_histograms, &slot);
	struct role *r = role_here(state->role);

	state->told_ns = accounted;
	if (!h)
		return;
	c->wait_ns += wait;
	c->waits++;
	h->sum_ns += wait;
	bucket = histogram_slot(wait);
	if (bucket < HIST_SLOTS)
		h->slots[bucket]++;
	if (r) {
		r->wait_ns += wait;
		r->waits++;
	}
	if (own) {
		c->wait_self_ns += wait;
		return;
	}
	if (holder->pid) { /* an idle CPU was held by nobody */
		c->wait_other_ns += wait;
		if (r)
			r->wait_other_ns += wait;
	}
	held_by_other(c, slot, holder, wait);
}

static __always_inline long state_field(struct task_struct *task)
{
	struct task_struct___before_5_14 *old = (void *)task;

	/* renamed and retyped by 2f064a59a11f ("sched: Change task_struct::state") */
	if (bpf_core_field_exists(task->__state))
		return BPF_CORE_READ(task, __state);
	return BPF_CORE_READ(old, state);
}

/* A task leaves the CPU; returns the target it ran for: what was noted when it came, unless the
 * targets changed since, or its coming was not seen (hardened kernels run no program of ours in the
 * context of some tasks). */
static __always_inline u32 left_cpu(struct task_struct *task, const struct running *on, u32 now_at,
				    bool runnable, u64 *now)
{
	bool is_it = on->pid == task->pid;
	struct task_state *state = NULL;
	u32 slot = on->slot;

	if (!is_it || on->generation != now_at) {
		state = watched(task, now_at);
		slot = state ? state->slot : 0;
		/* what it did for another target than it is of now is not told */
		is_it = is_it && on->slot == slot;
	}
	if (slot) {
		struct counters *c = counters_of(slot);

		*now = clock_of(task);
		if (c)
			ran(c, state ? role_of(task, state, *now) : on->role,
			    is_it ? between(on->since_ns, *now) : 0, runnable);
	}
	return slot;
}

/* one task leaves the CPU, another comes on */
SEC("tp_btf/sched_switch")
int switch_tasks(u64 *ctx)
{
	bool preempt = ctx[0];
	struct task_struct *prev = (void *)ctx[1];
	struct task_struct *next = (void *)ctx[2];
	/* The tracepoint's own copy is exact; the field may already say what a waker wrote since
	 * (fa2c3254d7cf, "sched/tracing: Don't re-read p->state"). */
	u32 prev_state = have_prev_state ? ctx[3] : state_field(prev);
	u32 zero = 0, now_at = generation_now();
	struct running *on = bpf_map_lookup_elem(&running, &zero);
	struct task_state *came;
	struct counters *c;
	u64 now = 0; /* most switches are between tasks nobody watches: those ask for no time */
	u32 left;

	if (!on)
		return 0;
	/* preempted means runnable whatever the state says */
	left = left_cpu(prev, on, now_at, preempt || !prev_state, &now);
	came = watched(next, now_at);
	on->pid = next->pid;
	on->generation = now_at;
	on->slot = came ? came->slot : 0;
	if (came) {
		if (!now)
			now = clock_of(next);
		on->since_ns = now;
		on->role = role_of(next, came, now);
		c = counters_of(came->slot);
		if (c && is_queued(next))
			waited(c, next, came, prev, left, now);
	}
	if (!have_task_storage && prev_state & TASK_DEAD) {
		u32 pid = prev->pid;

		bpf_map_delete_elem(&known_tasks_by_pid, &pid);
	}
	return 0;
}
