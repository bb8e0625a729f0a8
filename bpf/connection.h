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
	u64 out_ns; /* when out_next was reached */
	u64 post_ns; /* when the first byte of a request that is still cut came in */
	u32 blocked_seq; /* where the last write that left bytes unsent ended */
	u32 burst_bytes; /* opaque: left so far of what was written at once */
	u8 post_seen; /* so many bytes of "POST " came in so far */
	u8 heard; /* the client has spoken since the engine did: its next bytes begin no request */
	u8 window_closed; /* the client may send nothing */
	u8 left; /* the client has closed its side */
	u8 spoke; /* opaque: the engine has answered in this turn */
	u8 turns; /* opaque: 0 or some */
};

/* lives and dies with the socket */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection);
} connections SEC(".maps");

/* v2 cgroup id -> target */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u32);
} stream_cgroups SEC(".maps");

/* engines in network namespaces of their own may all listen on one port */
struct port_key {
	u32 port;
	u32 slot; /* whose the socket's cgroup is; 0: nobody's, or shared */
};

/* which sockets serve, and whose they are */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct port_key);
	__type(value, u32);
} ports SEC(".maps");

/* The engine that a socket of this cgroup with this local port serves for, 0 for none. */
static __always_inline u32 server_at(u64 cgroup, u32 port)
{
	u32 *by_cgroup = bpf_map_lookup_elem(&stream_cgroups, &cgroup);
	struct port_key key = { .port = port, .slot = by_cgroup ? *by_cgroup : 0 };
	u32 *slot = bpf_map_lookup_elem(&ports, &key);

	return slot && *slot < max_targets ? *slot : 0;
}

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

/* Whether the segment from `next` on finds no room in the client's window (tcp_snd_wnd_test). */
static __always_inline bool window_is_full(struct tcp_sock *tp, u32 next)
{
	u32 unsent = tp->write_seq - next;
	u32 segment = unsent < tp->mss_cache ? unsent : tp->mss_cache;

	return (int)(next + segment - tp->snd_una - tp->snd_wnd) > 0;
}

/* A write returned and left bytes unsent. Where writes are seen, only the writer's side begins and
 * only the sender's side ends: what left between the two is found out by its sequence number. */
static __always_inline void begin_blocked(struct connection *c, struct counters *n, u32 seq, u64 now)
{
	c->blocked_seq = seq;
	if (c->blocked_since_ns)
		return;
	c->blocked_since_ns = now;
	if (n)
		ADD(n->blocked_begun, 1);
}

/* The unsent bytes have left, or never will. */
static __always_inline void end_blocked(struct connection *c, struct counters *n, u64 now)
{
	u64 since = c->blocked_since_ns, blocked_ns;

	if (!since)
		return;
	c->blocked_since_ns = 0;
	if ((int)(c->out_next - c->blocked_seq) >= 0)
		now = c->out_ns;
	blocked_ns = now > since ? now - since : 0;
	c->stream.blocked_ns += blocked_ns;
	if (n) {
		ADD(n->blocked_ended, 1);
		ADD(n->blocked_ns, blocked_ns);
	}
}

#endif
