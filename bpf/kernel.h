/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The kernel types our programs read, as small as they can be: CO-RE moves each field to where the
 * running kernel has it. Names after ___ are flavours of one type, for kernels that renamed it. */
#ifndef SITS_KERNEL_H
#define SITS_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef _Bool bool;
#define true 1
#define false 0

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
};

struct rq {
	u64 clock;
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
};

/* since 2.6.15; filled where CONFIG_SCHED_INFO is */
struct sched_info {
	unsigned long long run_delay;
	unsigned long long last_queued;
};

struct task_struct {
	unsigned int __state;
	struct sched_entity se;
	struct sched_info sched_info;
	int pid;
	int tgid;
	char comm[16];
	struct css_set *cgroups;
};

/* before 5.14 the field was `state`, a signed long */
struct task_struct___before_5_14 {
	long state;
};

/* the kernel's own enumeration: only the value of this one name is asked for, by CO-RE */
enum cgroup_subsys_id {
	cpu_cgrp_id = 1,
};

struct in6_addr {
	union {
		u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	u32 skc_daddr;
	u16 skc_dport;
	u16 skc_num;
	u16 skc_family;
	struct in6_addr skc_v6_daddr;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock {
	struct sock_common __sk_common;
	int sk_err;
	struct sock_cgroup_data sk_cgrp_data;
};

struct inet_connection_sock {
	u8 icsk_ca_state : 5;
	u8 icsk_pending;
	u8 icsk_retransmits;
	u32 icsk_probes_tstamp;
};

struct tcp_sock {
	u64 bytes_received;
	u32 write_seq;
	u32 snd_nxt;
	u32 snd_una;
	u32 snd_wnd;
	u32 mss_cache;
	u32 chrono_start;
	u32 chrono_stat[3];
	u8 chrono_type : 2;
};

struct sk_buff {
	char cb[48];
};

struct tcp_skb_cb {
	union {
		struct {
			u16 tcp_gso_segs;
		};
	};
};

#pragma clang attribute pop

#endif
