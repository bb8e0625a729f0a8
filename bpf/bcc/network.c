/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Retransmits, and how long bytes wait in send queues, where the kernel has no BTF.
 *
 * No stream is followed here: a socket counts for the engine whose port it has. A send queue is
 * looked at whenever its client acknowledges something, so a wait is known to a round trip.
 */
#include <linux/tcp.h>
#include <net/sock.h>
#include <net/tcp.h>

/* engines in network namespaces of their own may all listen on one port */
struct port_key {
	u32 port;
	u32 slot; /* whose the socket's cgroup is; 0: nobody's, or shared */
};

/* a socket with unsent bytes */
struct unsent {
	u64 since_ns;
	u64 slot;
};

BPF_TABLE_PINNED("hash", u64, u32, stream_cgroups, 16384, PINS "stream_cgroups", BPF_F_NO_PREALLOC);
BPF_TABLE_PINNED("hash", struct port_key, u32, ports, 4096, PINS "ports", BPF_F_NO_PREALLOC);
BPF_TABLE("lru_hash", u64, struct unsent, unsent_sockets, 16384);

/* The engine that a socket serves for, 0 for none. */
static __always_inline u32 server_of(struct sock *sk)
{
	struct port_key key = {};
	u64 cgroup = 0;
	u32 *slot;
	u16 port = 0;

	FETCH(port, sk->__sk_common.skc_num);
	/* a pointer, or before 5.16 (8520e224f547) something else, told by the lowest bit */
	bpf_probe_read_kernel(&cgroup, sizeof(cgroup), &sk->sk_cgrp_data);
	if (cgroup && !(cgroup & 1)) {
		cgroup = id_of((struct cgroup *)cgroup);
		slot = stream_cgroups.lookup(&cgroup);
		if (slot)
			key.slot = *slot;
	}
	key.port = port;
	slot = ports.lookup(&key);
	return slot && *slot < MAX_TARGETS ? *slot : 0;
}

int retransmit(struct bpf_raw_tracepoint_args *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx->args[1];
	u32 slot = server_of((struct sock *)ctx->args[0]);
	struct counters *c;
	u16 segments = 0;

#if HAVE_RETRANSMIT_ERROR
	if ((int)ctx->args[2])
		return 0;
#endif
	if (!slot)
		return 0;
	FETCH(segments, ((struct tcp_skb_cb *)&skb->cb[0])->tcp_gso_segs);
	c = counters_of(slot);
	if (c)
		ADD(c->retransmits, segments ? segments : 1);
	return 0;
}

static __always_inline void sent_all(u64 key, struct unsent *unsent, u64 now)
{
	u32 slot = unsent->slot;
	struct counters *c = counters_of(slot);

	if (c) {
		ADD(c->blocked_ns, now - unsent->since_ns);
		ADD(c->blocked_ended, 1);
	}
	unsent_sockets.delete(&key);
}

int acknowledged(struct bpf_raw_tracepoint_args *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx->args[0];
	u64 key = ctx->args[0], now = bpf_ktime_get_ns();
	struct unsent *known = unsent_sockets.lookup(&key);
	u32 written = 0, sent = 0, slot;
	struct counters *c;

	FETCH(written, tp->write_seq);
	FETCH(sent, tp->snd_nxt);
	if (known) {
		if (written == sent)
			sent_all(key, known, now);
		return 0;
	}
	if (written == sent)
		return 0;
	slot = server_of((struct sock *)ctx->args[0]);
	if (!slot)
		return 0;
	struct unsent fresh = { .since_ns = now, .slot = slot };
	unsent_sockets.update(&key, &fresh);
	c = counters_of(slot);
	if (c)
		ADD(c->blocked_begun, 1);
	return 0;
}

int socket_gone(struct bpf_raw_tracepoint_args *ctx)
{
	u64 key = ctx->args[0];
	struct unsent *known = unsent_sockets.lookup(&key);

	if (known)
		sent_all(key, known, bpf_ktime_get_ns());
	return 0;
}
