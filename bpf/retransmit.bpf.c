// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Segments sent again, for the stream and the engine whose they are. */
#include "connection.h"

char LICENSE[] SEC("license") = "GPL";

/* set by the loader: since 6.17 the tracepoint also fires for a retransmission that failed and
 * says so in a third argument */
const volatile bool have_retransmit_error = false;

/* A segment was sent again: count it for its stream and its target. In softirq the current task
 * means nothing, the socket does. */
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
	if (n)
		ADD(n->retransmits, segments);
	return 0;
}
