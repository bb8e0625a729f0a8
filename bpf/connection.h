/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What is kept for each connection of an engine, beside its socket. */
#ifndef SITS_CONNECTION_H
#define SITS_CONNECTION_H

#include "http.h"
#include "maps.h"

/* a socket's connection: the stream under way and where its bytes stand */
struct connection {
	struct stream stream;
	struct follow follow;
	u32 out_next; /* sequence number of the next byte not yet followed */
	u32 in_next;
	u32 out_known;
	u32 in_known;
	u32 generation; /* when its target was last looked up */
	u32 busy_base; /* TCP_INFO's times when the stream began, in jiffies */
	u32 rwnd_base;
	u32 sndbuf_base;
	u64 blocked_since_ns; /* 0: nothing is unsent */
};

/* lives and dies with the socket */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection);
} connections SEC(".maps");

/* listening port -> target: which sockets serve, and whose they are where a cgroup is shared */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u32);
} ports SEC(".maps");

/* ticks a second, set by the loader: TCP counts its times in them */
const volatile u32 hz = 250;

/* include/linux/tcp.h, enum tcp_chrono */
#define CHRONO_BUSY 1
#define CHRONO_RWND 2
#define CHRONO_SNDBUF 3

static __always_inline u32 chrono(struct tcp_sock *tp, u32 kind, u32 running)
{
	u32 ticks = tp->chrono_stat[kind - 1];

	if (running == kind)
		ticks += (u32)bpf_jiffies64() - tp->chrono_start;
	return ticks;
}

/* The socket's limited times since the stream began: what TCP_INFO would say (tcp_get_info_chrono_
 * stats in net/ipv4/tcp.c), where busy counts all three. */
static __always_inline void take_chrono(struct connection *c, struct tcp_sock *tp, bool begin)
{
	u32 running = BPF_CORE_READ_BITFIELD(tp, chrono_type);
	u32 rwnd = chrono(tp, CHRONO_RWND, running);
	u32 sndbuf = chrono(tp, CHRONO_SNDBUF, running);
	u32 busy = chrono(tp, CHRONO_BUSY, running) + rwnd + sndbuf;

	if (begin) {
		c->busy_base = busy;
		c->rwnd_base = rwnd;
		c->sndbuf_base = sndbuf;
	}
	c->stream.busy_ms = (busy - c->busy_base) * 1000ULL / hz;
	c->stream.rwnd_limited_ms = (rwnd - c->rwnd_base) * 1000ULL / hz;
	c->stream.sndbuf_limited_ms = (sndbuf - c->sndbuf_base) * 1000ULL / hz;
}

/* Bytes that were written have not left yet, or the last of them just did. */
static __always_inline void unsent(struct connection *c, struct counters *n, bool any, u64 now)
{
	u64 blocked_ns;

	if (any && !c->blocked_since_ns) {
		c->blocked_since_ns = now;
		if (n)
			ADD(n->blocked_begun, 1);
	} else if (!any && c->blocked_since_ns) {
		blocked_ns = now - c->blocked_since_ns;
		c->blocked_since_ns = 0;
		c->stream.blocked_ns += blocked_ns;
		if (n) {
			ADD(n->blocked_ended, 1);
			ADD(n->blocked_ns, blocked_ns);
		}
	}
}

#endif
