// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The engine's own reads and writes on a stream's socket (kernels from 6.3): when it took the
 * request up, when it wrote, and whether what it wrote could leave at once.
 */
#include "connection.h"

char LICENSE[] SEC("license") = "GPL";

#define EAGAIN 11

/* A read by the engine returned: the first after a request ends its wait in the receive queue. */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(engine_read, struct sock *sk, int length)
{
	struct connection *c = bpf_sk_storage_get(&connections, sk, NULL, 0);
	struct counters *n;
	u64 now;

	if (!c || !c->stream.request_ns || c->stream.read_ns || length <= 0)
		return 0;
	now = bpf_ktime_get_ns();
	c->stream.read_ns = now;
	n = counters_of(c->stream.slot);
	if (n) {
		ADD(n->reads, 1);
		ADD(n->read_wait_ns, now - c->stream.request_ns);
	}
	return 0;
}

/* A write by the engine returned; a stream's last one does so after its end. What is unsent then
 * waits for the client's window, for the congestion window or for memory. */
SEC("tp_btf/sock_send_length")
int BPF_PROG(engine_write, struct sock *sk, int length)
{
	struct connection *c = bpf_sk_storage_get(&connections, sk, NULL, 0);
	struct counters *n;
	struct tcp_sock *tp;
	u64 now, gap;

	if (!c)
		return 0;
	n = counters_of(c->stream.slot);
	if (n && length > 0)
		ADD(n->writes, 1);
	if (n && length == -EAGAIN)
		ADD(n->write_again, 1);
	if (!c->stream.request_ns)
		return 0;
	if (length == -EAGAIN)
		c->stream.write_again++;
	if (length <= 0)
		return 0;
	now = bpf_ktime_get_ns();
	if (c->stream.last_write_ns) {
		gap = now - c->stream.last_write_ns;
		if (gap > c->stream.write_gap_max_ns)
			c->stream.write_gap_max_ns = gap;
	}
	c->stream.last_write_ns = now;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp && c->out_known && (int)(tp->write_seq - c->out_next) > 0) {
		c->stream.writes_stalled++;
		if (n) {
			ADD(n->writes_stalled, 1);
			if (window_is_full(tp, tp->snd_nxt))
				ADD(n->writes_held, 1);
		}
		begin_blocked(c, n, tp->write_seq, now);
	}
	return 0;
}
