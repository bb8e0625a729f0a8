// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The life of every stream, from the packets of the engine's own cgroup: request in, response
 * head, data chunks and the gaps between them, end.
 *
 * Packets out of one socket pass under its lock, so its storage has one writer at a time; a request
 * comes in only after the response before it went out. Every path lets the packet through.
 */
#include "early.h"
#include "life.h"
#include "opaque.h"
#include "segment.h"

char LICENSE[] SEC("license") = "GPL";

#define PASS 1
#define TCP_ESTABLISHED 1
#define TCP_SYN_RECV 3
#define TCP_CLOSE 7

#define WINDOW 16

/* set by the loader: since 6.3 the engine's writes are seen, and what they leave unsent */
const volatile bool have_writes = false;

__noinline u32 follow_byte(struct follow *f, u8 byte)
{
	return f ? framing_byte(f, byte) : NOTHING;
}

/* Follow up to `n` bytes, the first in the lowest of `low`, until one of them makes something
 * happen. Returns how many were followed and, above them, what happened. */
__noinline u32 follow_bytes(struct follow *f, u64 low, u64 high, u32 n)
{
	u32 happened = NOTHING, i;

	if (!f)
		return 0;
	for (i = 0; i < WINDOW; i++) {
		if (i >= n || happened || is_jump(f->phase) || is_rest(f->phase))
			break;
		/* shifted out byte by byte: no index into the stack that the verifier must bound */
		happened = follow_byte(f, low);
		low = low >> 8 | high << 56;
		high >>= 8;
	}
	return i | happened << 8;
}

__noinline int follow_word(struct follow *f, u64 word, u32 n)
{
	if (f && n)
		take_events(f, word, n < 8 ? n : 8);
	return 0;
}

/* a packet's bytes, from `at` to `end`, as far as they are followed */
struct walk {
	struct __sk_buff *skb;
	struct connection *connection;
	u64 now;
	u32 at;
	u32 end;
	u32 write_seq; /* the last byte the engine wrote, and one */
	bool stuck; /* there is more, and it can't leave */
};

#define EVENTS_WINDOW 64

/* The events of a chunk are counted eight bytes at a time, `n` bytes at the most. */
static __always_inline long step_over_events(struct walk *w, u64 n)
{
	struct connection *c = w->connection;
	u64 words[EVENTS_WINDOW / 8] = {};
	u32 happened, i;

	n = at_most(n, EVENTS_WINDOW);
	if (bpf_skb_load_bytes(w->skb, w->at, words, n))
		return 1;
#pragma unroll
	for (i = 0; i < EVENTS_WINDOW / 8; i++) {
		if (8 * i < n)
			follow_word(&c->follow, words[i], n - 8 * i);
	}
	n = jump(&c->follow, n, &happened);
	c->stream.body_bytes += n;
	w->at += n;
	if (happened)
		note(c, happened, w->now);
	return 0;
}

/* One jump over payload, or one window of framing. Returns 1 when the packet is through. */
static __always_inline long step(struct walk *w)
{
	struct connection *c = w->connection;
	struct follow *f = &c->follow;
	u64 bytes[WINDOW / 8] = {};
	u32 happened, followed;
	u64 n;

	if (w->at >= w->end || is_rest(f->phase))
		return 1;
	n = w->end - w->at;
	if (f->phase == PHASE_DATA && c->stream.flags & STREAM_EVENTS) {
		if (n > f->left)
			n = f->left;
		return step_over_events(w, n);
	}
	if (is_jump(f->phase)) {
		n = jump(f, n, &happened);
		c->stream.body_bytes += n;
		w->at += n;
		if (happened)
			note(c, happened, w->now);
		return 0;
	}
	n = at_most(n, WINDOW);
	if (bpf_skb_load_bytes(w->skb, w->at, bytes, n))
		return 1;
	followed = follow_bytes(f, bytes[0], bytes[1], n);
	w->at += followed & 0xff;
	c->stream.body_bytes += f->body_bytes;
	f->body_bytes = 0;
	if (followed >> 8)
		note(c, followed >> 8, w->now);
	return 0;
}

static long step_in_loop(u32 index, struct walk *w)
{
	return step(w);
}

static __always_inline u32 server_of(struct __sk_buff *skb, struct bpf_sock *sk)
{
	return server_at(bpf_skb_cgroup_id(skb), sk->src_port);
}

/* The connection that this packet of an engine belongs to, if one is followed. When its target is
 * not what it was, it is forgotten: what it counts would be another's. */
static __always_inline struct connection *connection_of(struct __sk_buff *skb, struct bpf_sock **sk)
{
	struct bpf_sock *any = skb->sk;
	struct connection *c;
	u32 now_at;

	if (!any)
		return NULL;
	*sk = bpf_sk_fullsock(any);
	if (!*sk)
		return NULL;
	c = bpf_sk_storage_get(&connections, *sk, NULL, 0);
	if (!c)
		return NULL;
	now_at = generation_now();
	if (c->generation == now_at)
		return c;
	if (server_of(skb, *sk) != c->stream.slot) {
		bpf_sk_storage_delete(&connections, *sk);
		return NULL;
	}
	c->generation = now_at;
	return c;
}

/* in the order of a packet's bytes, the first in the lowest */
#define POST ('P' | 'O' << 8 | 'S' << 16 | (u64)'T' << 24 | (u64)' ' << 32)
#define POST_BYTES 5

/* Tell of a stream's start, with up to `most` bytes of what came, a constant. `before` bytes of the
 * method came apart, ahead of them. */
static __always_inline void tell_start(struct __sk_buff *skb, struct connection *c,
				       struct segment *s, u32 before, const u32 most)
{
	struct start_event *e = reserve_start(c, most);
	u64 len;

	if (!e)
		return;
	if (!before) {
		len = at_most(s->payload_len, most);
		if (!bpf_skb_load_bytes(skb, s->payload_at, e->head, len))
			e->head_len = len;
	} else if (before < POST_BYTES) {
		*(u64 *)e->head = POST;
		len = at_most(s->payload_len, most / 2);
		if (!bpf_skb_load_bytes(skb, s->payload_at, e->head + before, len))
			e->head_len = before + len;
	}
	bpf_ringbuf_submit(e, wake_where_full());
}

static __always_inline void begin_request(struct __sk_buff *skb, struct bpf_sock *sk,
					  struct connection *c, struct segment *s)
{
	struct counters *n = counters_of(c->stream.slot);

	begin_stream(c, bpf_skc_to_tcp_sock(sk), c->post_ns);
	if (n)
		ADD(n->requests, 1);
	if (s->payload_len <= SHORT_HEAD_BYTES && !c->post_seen)
		tell_start(skb, c, s, 0, SHORT_HEAD_BYTES);
	else
		tell_start(skb, c, s, c->post_seen, HEAD_BYTES);
}

/* How many bytes of "POST " have come when `bytes` follow those `seen`; all of them: a request. */
static __always_inline u32 post_bytes(u64 bytes, u32 len, u32 seen)
{
	u32 n = POST_BYTES - seen;
	u64 all;

	if (seen >= POST_BYTES)
		return 0;
	if (n > len)
		n = len;
	all = (1ULL << 8 * n) - 1;
	return (bytes & all) == (POST >> 8 * seen & all) ? seen + n : 0;
}

static __always_inline struct connection *new_connection(struct __sk_buff *skb, struct bpf_sock *sk,
							 u32 slot)
{
	struct connection *c;
	u16 remote_port;
	u32 ip4;

	c = bpf_sk_storage_get(&connections, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		note_no_storage();
		return NULL;
	}
	remote_port = sk->dst_port;
	c->generation = generation_now();
	c->stream.slot = slot;
	c->stream.connection = bpf_get_socket_cookie(skb);
	c->stream.local_port = sk->src_port;
	c->stream.remote_port = bpf_ntohs(remote_port);
	c->stream.family = sk->family;
	ip4 = sk->dst_ip4;
	barrier_var(ip4); /* or the compiler picks a field's address, which the verifier forbids */
	if (sk->family == AF_INET) {
		c->stream.remote_ip[0] = ip4;
	} else {
		c->stream.remote_ip[0] = sk->dst_ip6[0];
		c->stream.remote_ip[1] = sk->dst_ip6[1];
		c->stream.remote_ip[2] = sk->dst_ip6[2];
		c->stream.remote_ip[3] = sk->dst_ip6[3];
	}
	return c;
}

/* Whether the next byte of the client can be a request's first. */
static __always_inline bool begins_here(struct bpf_sock *sk, struct connection *c)
{
	struct tcp_sock *tp;

	if (c)
		return !c->heard;
	tp = bpf_skc_to_tcp_sock(sk);
	return tp && !tp->bytes_received;
}

/* Bytes of the client. Only the beginning of a request says anything. */
static __always_inline void bytes_in(struct __sk_buff *skb, struct bpf_sock *sk,
				     struct connection *c, struct segment *s)
{
	u64 bytes, now;
	u32 seen, slot;

	if (c && c->follow.phase != PHASE_IDLE && c->follow.phase != PHASE_OPAQUE)
		goto out;
	now = bpf_ktime_get_ns();
	bytes = first_bytes(skb, s);
	if (c && c->follow.phase == PHASE_OPAQUE) {
		opaque_in(sk, c, s, bytes, now);
		goto out;
	}
	seen = post_bytes(bytes, s->payload_len, c ? c->post_seen : 0);
	if (seen && seen < POST_BYTES && !(c && c->post_seen) && !begins_here(sk, c))
		seen = 0;
	if (!c) {
		if (!seen && !is_opaque(bytes))
			return;
		slot = server_of(skb, sk);
		if (!slot)
			return;
		if (sk->state == BPF_TCP_LISTEN) {
			if (seen == POST_BYTES && !(s->flags & SYN))
				keep_early(skb, sk, slot, s);
			return;
		}
		c = new_connection(skb, sk, slot);
		if (!c)
			return;
		if (!seen)
			c->follow.phase = PHASE_OPAQUE;
	}
	if (!c->post_seen)
		c->post_ns = now;
	if (seen == POST_BYTES)
		begin_request(skb, sk, c, s);
	c->post_seen = seen < POST_BYTES ? seen : 0;
	c->heard = 1;
out:
	if (c) {
		c->in_next = s->seq + s->payload_len;
		c->in_known = 1;
	}
}

/* Requests, and clients that give up. */
SEC("cgroup_skb/ingress")
int stream_in(struct __sk_buff *skb)
{
	struct bpf_sock *sk = NULL;
	struct connection *c = connection_of(skb, &sk);
	struct segment s = {};
	struct tcp_sock *tp;

	if (!sk || !parse_segment(skb, &s))
		return PASS;
	if (c && s.flags & RST && c->stream.request_ns) {
		tp = bpf_skc_to_tcp_sock(sk);
		if (tp)
			take_chrono(c, tp, false);
		c->follow.phase = PHASE_LOST;
		end_stream(c, END_CLIENT_RESET, bpf_ktime_get_ns());
		return PASS;
	}
	if (c && s.flags & FIN)
		c->left = 1;
	if (!s.payload_len)
		return PASS;
	if (c && c->in_known && (int)(s.seq + s.payload_len - c->in_next) <= 0)
		return PASS; /* sent again by the client */
	bytes_in(skb, sk, c, &s);
	return PASS;
}

/* Where writes are not seen: whether what is left behind a packet can't follow. The client's window
 * is full then; or this one carries nothing `fresh` though there is: the congestion window is. */
static __always_inline bool is_stuck(struct connection *c, struct tcp_sock *tp, bool fresh)
{
	if ((int)(tp->write_seq - c->out_next) <= 0)
		return false;
	return !fresh || window_is_full(tp, c->out_next);
}

static __always_inline bool begin_walk(struct __sk_buff *skb, struct walk *w, struct segment *s)
{
	struct bpf_sock *sk = NULL;
	struct connection *c = connection_of(skb, &sk);
	struct tcp_sock *tp;
	u32 skip = 0;

	if (!c || !parse_segment(skb, s))
		return false;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp && c->stream.request_ns)
		take_chrono(c, tp, false);
	w->write_seq = tp ? tp->write_seq : 0;
	w->skb = skb;
	w->connection = c;
	w->now = bpf_ktime_get_ns();
	w->end = s->payload_at + s->payload_len;
	if (c->out_known) {
		/* bytes before out_next are a retransmission */
		skip = c->out_next - s->seq;
		if ((int)skip < 0) {
			/* a hole: bytes that left unseen. Between streams it is no matter. */
			if (c->stream.request_ns) {
				if (c->follow.phase != PHASE_STATUS || c->follow.seen)
					note(c, lose(&c->follow), w->now);
			} else if (c->follow.phase != PHASE_LOST) {
				c->follow.phase = PHASE_IDLE;
			}
			skip = 0;
		}
		if (skip > s->payload_len)
			skip = s->payload_len;
	}
	w->at = s->payload_at + skip;
	if (w->at < w->end) {
		if ((int)(c->out_next - c->blocked_seq) >= 0)
			end_blocked(c, counters_of(c->stream.slot), w->now);
		c->out_next = s->seq + s->payload_len;
		c->out_ns = w->now;
		c->heard = 0;
		if (!c->stream.write_ns && c->stream.request_ns)
			c->stream.write_ns = w->now;
		c->out_known = 1;
	}
	if (!have_writes && tp && c->out_known)
		w->stuck = is_stuck(c, tp, w->at < w->end);
	return true;
}

/* The engine has not read what came: it lets the client send no more. */
static __always_inline void note_window(struct connection *c, struct segment *s)
{
	struct counters *n = counters_of(c->stream.slot);
	bool closed = !s->window;

	if (s->flags & RST || closed == c->window_closed)
		return;
	c->window_closed = closed;
	if (n && closed)
		ADD(n->receive_queue_full, 1);
}

/* The engine may close now without cutting anything off. */
static __always_inline bool is_until_close(struct connection *c)
{
	u8 phase = c->follow.phase;

	return phase == PHASE_UNTIL_CLOSE || phase == PHASE_EVENT ||
	       (phase == PHASE_OPAQUE && c->spoke);
}

/* The engine closed in mid-stream: of itself, or because its client had closed before. */
static __always_inline u32 closed_by(struct connection *c)
{
	return c->left ? END_CLIENT_RESET : END_SERVER_CLOSED;
}

static __always_inline void end_walk(struct walk *w, struct segment *s)
{
	struct connection *c = w->connection;
	bool all_left = c->out_next == w->write_seq;

	if (c->follow.phase == PHASE_UNTIL_CLOSE) {
		c->stream.body_bytes += w->end - w->at;
	} else if (c->follow.phase == PHASE_OPAQUE) {
		opaque_out(c, w->end - w->at, all_left, w->now);
	} else if (w->at < w->end && !is_rest(c->follow.phase)) {
		/* more chunks in one packet than a walk may take */
		note(c, lose(&c->follow), w->now);
		return;
	}
	if (all_left)
		end_blocked(c, counters_of(c->stream.slot), w->now);
	else if (w->stuck && c->stream.request_ns)
		begin_blocked(c, counters_of(c->stream.slot), w->write_seq, w->now);
	if (!c->stream.request_ns || !(s->flags & (FIN | RST)))
		return;
	if (is_until_close(c) && !(s->flags & RST))
		end_stream(c, END_COMPLETE, w->now);
	else if (c->follow.phase != PHASE_TRAILER)
		end_stream(c, closed_by(c), w->now);
	c->follow.phase = PHASE_LOST;
}

/* 512 KiB, the largest packet there is (GSO_MAX_SIZE), hold fewer steps than this: the shortest chunk
 * has 6 bytes, two steps each */
#define STEPS_MAX 196608

/* Responses: as many chunks as a packet can hold (bpf_loop: kernels from 5.17). */
SEC("cgroup_skb/egress")
int stream_out(struct __sk_buff *skb)
{
	struct segment s = {};
	struct walk w = {};

	if (!begin_walk(skb, &w, &s))
		return PASS;
	note_window(w.connection, &s);
	bpf_loop(STEPS_MAX, step_in_loop, &w, 0);
	end_walk(&w, &s);
	return PASS;
}

/* The connection is over: nothing more comes of its stream. */
static __always_inline void close_connection(struct sock *sk, struct connection *c, bool by_network)
{
	u64 now = bpf_ktime_get_ns();
	struct tcp_sock *tp;

	if (c->stream.request_ns) {
		tp = bpf_skc_to_tcp_sock(sk);
		if (tp)
			take_chrono(c, tp, false);
		end_stream(c, by_network ? END_CLOSED : closed_by(c), now);
	}
	c->follow.phase = PHASE_LOST;
	end_blocked(c, counters_of(c->stream.slot), now);
}

/* Sockets that begin with a request, and those that close without a word: a client that vanished,
 * an engine that resets. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(socket_state, struct sock *sk, int old_state, int new_state)
{
	struct connection *c;

	if (old_state == TCP_SYN_RECV && new_state == TCP_ESTABLISHED) {
		take_up_early(sk);
		return 0;
	}
	if (new_state != TCP_CLOSE)
		return 0;
	c = bpf_sk_storage_get(&connections, sk, NULL, 0);
	/* an error is the network's; without one the engine threw the connection away */
	if (c)
		close_connection(sk, c, BPF_CORE_READ(sk, sk_err));
	return 0;
}

/* The kernel leaves a tracing program out where it would interrupt itself. So what missed its end
 * has it here, when its socket goes. The engine may have taken the error by now, but what made TCP
 * give up is still there: it sent again, or probed a closed window, in vain. */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(socket_gone, struct sock *sk)
{
	struct inet_connection_sock *icsk = (void *)sk;
	struct connection *c = bpf_sk_storage_get(&connections, sk, NULL, 0);

	if (c)
		close_connection(sk, c,
				 BPF_CORE_READ(icsk, icsk_retransmits) ||
					 BPF_CORE_READ(icsk, icsk_probes_tstamp));
	return 0;
}
