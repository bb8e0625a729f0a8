// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What goes wrong on the way: segments and SYN-ACKs sent again, resets. In softirq the current task
 * means nothing; the socket says whose it is. */
#include "connection.h"

char LICENSE[] SEC("license") = "GPL";

/* include/net/inet_connection_sock.h, ICSK_TIME_LOSS_PROBE */
#define TIME_LOSS_PROBE 5

/* include/uapi/linux/tcp.h, TCP_CA_Recovery: from here on, segments are known to be lost */
#define CA_RECOVERY 3

/* set by the loader: since 6.17 the tracepoint also fires for a retransmission that failed and
 * says so in a third argument */
const volatile bool have_retransmit_error = false;

/* A tail loss probe sends the last segment again on suspicion (tcp_send_loss_probe). Its timer may
 * also be armed while an acknowledgement has a lost segment sent again. */
static __always_inline bool is_loss_probe(struct inet_connection_sock *icsk)
{
	return BPF_CORE_READ(icsk, icsk_pending) == TIME_LOSS_PROBE &&
	       BPF_CORE_READ_BITFIELD_PROBED(icsk, icsk_ca_state) < CA_RECOVERY;
}

/* A segment was sent again: count it for its stream and its target. */
SEC("tp_btf/tcp_retransmit_skb")
int retransmit(u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct sk_buff *skb = (void *)ctx[1];
	struct connection *c;
	struct counters *n;
	u16 segments;

	if (have_retransmit_error && (int)ctx[2])
		return 0;
	c = bpf_sk_storage_get(&connections, sk, NULL, 0);
	if (!c)
		return 0;
	segments = BPF_CORE_READ((struct tcp_skb_cb *)&skb->cb[0], tcp_gso_segs);
	if (!segments)
		segments = 1;
	c->stream.retransmits += segments;
	n = counters_of(c->stream.slot);
	if (!n)
		return 0;
	ADD(n->retransmits, segments);
	if (is_loss_probe((void *)sk))
		ADD(n->loss_probes, segments);
	return 0;
}

/* A SYN-ACK was sent again: `sk` is the listener. */
SEC("tp_btf/tcp_retransmit_synack")
int BPF_PROG(synack, const struct sock *sk)
{
	u32 slot = server_at(BPF_CORE_READ(sk, sk_cgrp_data.cgroup, kn, id),
			     BPF_CORE_READ(sk, __sk_common.skc_num));
	struct counters *n = slot ? counters_of(slot) : NULL;

	if (n)
		ADD(n->synack_retransmits, 1);
	return 0;
}

static __always_inline struct counters *counters_of_sock(struct sock *sk)
{
	struct connection *c = bpf_sk_storage_get(&connections, sk, NULL, 0);

	return c ? counters_of(c->stream.slot) : NULL;
}

/* The engine's host reset a connection. */
SEC("tp_btf/tcp_send_reset")
int BPF_PROG(reset_sent, struct sock *sk)
{
	struct counters *n;

	if (!sk)
		return 0;
	n = counters_of_sock(sk);
	if (n)
		ADD(n->resets_sent, 1);
	return 0;
}

/* A client reset a connection. */
SEC("tp_btf/tcp_receive_reset")
int BPF_PROG(reset_received, struct sock *sk)
{
	struct counters *n = counters_of_sock(sk);

	if (n)
		ADD(n->resets_received, 1);
	return 0;
}
