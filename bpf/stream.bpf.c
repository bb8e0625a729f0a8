// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The life of every stream, from the packets of the engine's own cgroup: request in, response
 * head, data chunks and the gaps between them, end.
 *
 * Packets out of one socket pass under its lock, so its storage has one writer at a time; a request
 * comes in only after the response before it went out. Every path lets the packet through.
 */
#include "connection.h"

char LICENSE[] SEC("license") = "GPL";

#define PASS 1
#define TCP 6
#define TCP_CLOSE 7
#define FIN 0x01
#define RST 0x04

/* v2 cgroup id -> target */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u32);
} stream_cgroups SEC(".maps");

/* stream starts, first chunks and ends, for the agent */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} events SEC(".maps");

/* one histogram a target and CPU: request in to first data chunk out */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct histogram);
} ttft_histograms SEC(".maps");

/* one histogram a target and CPU: between data chunks of one stream */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct histogram);
} gap_histograms SEC(".maps");

/* names the records of the ring in our BTF, where tests read their sizes */
const struct start_event *const btf_start_event = NULL;

static __always_inline void dropped(void)
{
	struct health *h = health_here();

	if (h)
		ADD(h->event_drops, 1);
}

static __always_inline void observe(void *map, u32 slot, u64 ns)
{
	struct histogram *h = bpf_map_lookup_elem(map, &slot);
	u32 bucket = histogram_slot(ns);

	if (!h || bucket >= HIST_SLOTS)
		return;
	ADD(h->sum_ns, ns);
	ADD(h->slots[bucket], 1);
}

static __always_inline void tell(struct connection *c, u32 kind, u32 reason, u64 now)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		dropped();
		return;
	}
	e->at_ns = now;
	e->kind = kind;
	e->reason = reason;
	e->stream = c->stream;
	bpf_ringbuf_submit(e, 0);
}

/* No first chunk in time, whether it comes late or never (seed A18). Answers that are no event
 * stream have none to wait for. */
static __always_inline void check_deadline(struct connection *c, struct counters *n, u64 now)
{
	struct target *target = bpf_map_lookup_elem(&targets, &c->stream.slot);

	if (!target || !target->first_chunk_deadline_ns)
		return;
	if (c->stream.head_ns && !(c->stream.flags & STREAM_EVENTS))
		return;
	if (now - c->stream.request_ns > target->first_chunk_deadline_ns)
		ADD(n->deadlines_missed, 1);
}

static __always_inline void end_stream(struct connection *c, u32 reason, u64 now)
{
	struct counters *n = counters_of(c->stream.slot);

	if (n) {
		if (reason == END_COMPLETE)
			ADD(n->ends_complete, 1);
		else
			ADD(n->ends_early, 1);
		ADD(n->body_bytes, c->stream.body_bytes);
		if (!c->stream.first_ns && c->stream.flags & STREAM_EVENTS)
			ADD(n->ends_unstarted, 1);
		if (!c->stream.first_ns)
			check_deadline(c, n, now);
	}
	unsent(c, n, false, now);
	tell(c, EVENT_END, reason, now);
	c->stream.request_ns = 0;
}

static __always_inline void first_chunk(struct connection *c, struct counters *n, u64 now)
{
	struct target *target = bpf_map_lookup_elem(&targets, &c->stream.slot);
	u64 ttft = now - c->stream.request_ns;

	c->stream.first_ns = now;
	ADD(n->first_chunks, 1);
	ADD(n->ttft_sum_ns, ttft);
	observe(&ttft_histograms, c->stream.slot, ttft);
	check_deadline(c, n, now);
	if (target && target->ttft_slo_ns && ttft > target->ttft_slo_ns) {
		ADD(n->ttft_over, 1);
		raise_edge(n, c->stream.slot, EDGE_TTFT, now, ttft);
	}
	tell(c, EVENT_FIRST, 0, now);
}

static __always_inline void next_chunk(struct connection *c, struct counters *n, u64 now)
{
	struct target *target = bpf_map_lookup_elem(&targets, &c->stream.slot);
	u64 gap = now - c->stream.last_ns;

	ADD(n->gaps, 1);
	ADD(n->gap_sum_ns, gap);
	c->stream.gap_sum_ns += gap;
	if (gap > c->stream.gap_max_ns)
		c->stream.gap_max_ns = gap;
	observe(&gap_histograms, c->stream.slot, gap);
	if (target && target->gap_slo_ns && gap > target->gap_slo_ns) {
		c->stream.gaps_over++;
		ADD(n->gaps_over, 1);
		raise_edge(n, c->stream.slot, EDGE_GAP, now, gap);
	}
}

/* A chunk's last byte left: from here on the user can have it. */
static __always_inline void chunk_done(struct connection *c, u64 now)
{
	struct counters *n = counters_of(c->stream.slot);

	if (!n)
		return;
	c->stream.chunks++;
	ADD(n->chunks, 1);
	if (c->stream.flags & STREAM_EVENTS) {
		c->stream.events += c->follow.events;
		ADD(n->events, c->follow.events);
		c->follow.events = 0;
		if (c->stream.first_ns)
			next_chunk(c, n, now);
		else
			first_chunk(c, n, now);
	}
	c->stream.last_ns = now;
}

static __always_inline void head_done(struct connection *c, u64 now)
{
	struct counters *n = counters_of(c->stream.slot);

	c->stream.head_ns = now;
	c->stream.status = c->follow.status;
	c->stream.flags = c->follow.flags & (STREAM_CHUNKED | STREAM_EVENTS | STREAM_LENGTH);
	if (!n)
		return;
	ADD(n->responses, 1);
	if (c->stream.status >= 400)
		ADD(n->errors, 1);
}

/* A function of its own to the verifier: checked once, not once for each byte of a window. */
__noinline int note(struct connection *c, u32 happened, u64 now)
{
	struct counters *n;
	struct health *h;

	if (!c)
		return 0;
	switch (happened) {
	case HEAD_DONE:
		head_done(c, now);
		/* a body that is empty ends with its head */
		if (c->follow.phase == PHASE_BODY && !c->follow.left) {
			c->follow.phase = PHASE_IDLE;
			end_stream(c, END_COMPLETE, now);
		}
		break;
	case CHUNK_DONE:
		chunk_done(c, now);
		break;
	case ROLE_DONE:
		c->stream.role_frames++;
		n = counters_of(c->stream.slot);
		if (n)
			ADD(n->role_frames, 1);
		break;
	case RESPONSE_DONE:
		end_stream(c, END_COMPLETE, now);
		break;
	case LOST_TRACK:
		h = health_here();
		if (h)
			ADD(h->lost_streams, 1);
		end_stream(c, END_LOST, now);
		break;
	}
	return 0;
}

/* A function of its own for the same reason. */
__noinline u32 follow_byte(struct follow *f, u8 byte)
{
	return f ? framing_byte(f, byte) : NOTHING;
}

/* a packet's bytes, from `at` to `end`, as far as they are followed */
struct walk {
	struct __sk_buff *skb;
	struct connection *connection;
	u64 now;
	u32 at;
	u32 end;
	u32 write_seq; /* the last byte the engine wrote, and one */
};

#define WINDOW 16

#define EVENTS_WINDOW 64

/* The events of a chunk are counted eight bytes at a time, `n` bytes at the most. */
static __always_inline long step_over_events(struct walk *w, u64 n)
{
	struct connection *c = w->connection;
	u64 words[EVENTS_WINDOW / 8] = {};
	u32 happened, i;

	if (n > EVENTS_WINDOW)
		n = EVENTS_WINDOW;
	barrier_var(n);
	if (n < 1 || n > EVENTS_WINDOW || bpf_skb_load_bytes(w->skb, w->at, words, n))
		return 1;
#pragma unroll
	for (i = 0; i < EVENTS_WINDOW / 8; i++) {
		if (8 * i < n)
			count_events(&c->follow, bytes_equal(words[i], '\n'),
				     bytes_equal(words[i], '\r'), n - 8 * i < 8 ? n - 8 * i : 8);
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
	u32 happened, i;
	u64 n; /* 64 bits wide: the verifier loses the bounds of a narrower copy */
	u8 byte;

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
	if (n > WINDOW)
		n = WINDOW;
	barrier_var(n); /* keeps the bounds the verifier needs for a length it does not know */
	if (n < 1 || n > WINDOW || bpf_skb_load_bytes(w->skb, w->at, bytes, n))
		return 1;
	for (i = 0; i < WINDOW; i++) {
		if (i >= n || is_jump(f->phase) || is_rest(f->phase))
			break;
		/* shifted out byte by byte: no index into the stack that the verifier must bound */
		byte = bytes[0];
		bytes[0] = bytes[0] >> 8 | bytes[1] << 56;
		bytes[1] >>= 8;
		c->stream.body_bytes += is_body(f->phase);
		w->at++;
		happened = follow_byte(f, byte);
		if (happened) {
			note(c, happened, w->now);
			break;
		}
	}
	return 0;
}

static long step_in_loop(u32 index, struct walk *w)
{
	return step(w);
}

/* The headers of a TCP packet as cgroup_skb shows it: from the IP header on. */
struct segment {
	u32 payload_at;
	u32 payload_len;
	u32 seq;
	u8 flags;
};

static __always_inline bool parse_segment(struct __sk_buff *skb, struct segment *s)
{
	u8 tcp[14], first, protocol;
	u32 ip_len;

	if (bpf_skb_load_bytes(skb, 0, &first, 1))
		return false;
	if (first >> 4 == 4) {
		ip_len = (first & 15) * 4;
		if (bpf_skb_load_bytes(skb, 9, &protocol, 1))
			return false;
	} else {
		/* extension headers do not occur on a server's TCP in practice */
		ip_len = 40;
		if (bpf_skb_load_bytes(skb, 6, &protocol, 1))
			return false;
	}
	if (protocol != TCP || bpf_skb_load_bytes(skb, ip_len, tcp, sizeof(tcp)))
		return false;
	s->seq = (u32)tcp[4] << 24 | (u32)tcp[5] << 16 | (u32)tcp[6] << 8 | tcp[7];
	s->flags = tcp[13];
	s->payload_at = ip_len + (tcp[12] >> 4) * 4;
	s->payload_len = skb->len > s->payload_at ? skb->len - s->payload_at : 0;
	return true;
}

/* The engine this socket serves for, 0 for none: it must listen there and be in its cgroup. */
static __always_inline u32 server_of(struct __sk_buff *skb, struct bpf_sock *sk)
{
	u64 cgroup = bpf_skb_cgroup_id(skb);
	u32 port = sk->src_port;
	u32 *by_cgroup, *by_port;

	by_port = bpf_map_lookup_elem(&ports, &port);
	if (!by_port)
		return 0;
	by_cgroup = bpf_map_lookup_elem(&stream_cgroups, &cgroup);
	if (by_cgroup && *by_cgroup != *by_port)
		return 0;
	return *by_port < max_targets ? *by_port : 0;
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

static __always_inline void begin_stream(struct __sk_buff *skb, struct connection *c,
					 struct segment *s, u64 now)
{
	struct start_event *e;
	struct counters *n;
	u64 len = s->payload_len; /* 64 bits wide: the verifier loses the bounds of a narrower copy */

	begin_response(&c->follow);
	c->stream.number++;
	c->stream.request_ns = now;
	c->stream.head_ns = 0;
	c->stream.first_ns = 0;
	c->stream.last_ns = 0;
	c->stream.gap_sum_ns = 0;
	c->stream.gap_max_ns = 0;
	c->stream.body_bytes = 0;
	c->stream.read_ns = 0;
	c->stream.write_ns = 0;
	c->stream.last_write_ns = 0;
	c->stream.write_gap_max_ns = 0;
	c->stream.blocked_ns = 0;
	c->stream.writes_stalled = 0;
	c->stream.write_again = 0;
	c->stream.chunks = 0;
	c->stream.events = 0;
	c->stream.role_frames = 0;
	c->stream.gaps_over = 0;
	c->stream.retransmits = 0;
	c->stream.status = 0;
	c->stream.flags = 0;

	n = counters_of(c->stream.slot);
	if (n)
		ADD(n->requests, 1);
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		dropped();
		return;
	}
	e->event.at_ns = now;
	e->event.kind = EVENT_START;
	e->event.reason = 0;
	e->event.stream = c->stream;
	e->pad = 0;
	if (len > HEAD_BYTES)
		len = HEAD_BYTES;
	barrier_var(len);
	__builtin_memset(e->head, 0, sizeof(e->head));
	if (len < 1 || len > HEAD_BYTES || bpf_skb_load_bytes(skb, s->payload_at, e->head, len))
		len = 0;
	e->head_len = len;
	bpf_ringbuf_submit(e, 0);
}

static __always_inline bool is_post(struct __sk_buff *skb, struct segment *s)
{
	u8 b[5];

	if (s->payload_len < sizeof(b) || bpf_skb_load_bytes(skb, s->payload_at, b, sizeof(b)))
		return false;
	return b[0] == 'P' && b[1] == 'O' && b[2] == 'S' && b[3] == 'T' && b[4] == ' ';
}

static __always_inline struct connection *new_connection(struct __sk_buff *skb, struct bpf_sock *sk)
{
	struct connection *c;
	u32 slot = server_of(skb, sk), ip4;
	u16 remote_port;

	if (!slot)
		return NULL;
	if (sk->state == BPF_TCP_LISTEN) {
		/* data that came with the handshake: this socket is not the connection's own, which
		 * is made only after us. Say that its first stream is missed. */
		struct health *h = health_here();

		if (h)
			ADD(h->lost_streams, 1);
		return NULL;
	}
	c = bpf_sk_storage_get(&connections, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		struct health *h = health_here();

		if (h)
			ADD(h->storage_full, 1);
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
	if (sk->family == 2) {
		c->stream.remote_ip[0] = ip4;
	} else {
		c->stream.remote_ip[0] = sk->dst_ip6[0];
		c->stream.remote_ip[1] = sk->dst_ip6[1];
		c->stream.remote_ip[2] = sk->dst_ip6[2];
		c->stream.remote_ip[3] = sk->dst_ip6[3];
	}
	return c;
}

/* Requests, and clients that give up. */
SEC("cgroup_skb/ingress")
int stream_in(struct __sk_buff *skb)
{
	struct bpf_sock *sk = NULL;
	struct connection *c = connection_of(skb, &sk);
	struct segment s = {};
	struct tcp_sock *tp;
	u64 now;

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
	if (!s.payload_len)
		return PASS;
	if (c && c->in_known && (int)(s.seq + s.payload_len - c->in_next) <= 0)
		return PASS; /* sent again by the client */
	if ((!c || c->follow.phase == PHASE_IDLE) && is_post(skb, &s)) {
		now = bpf_ktime_get_ns();
		if (!c)
			c = new_connection(skb, sk);
		if (!c)
			return PASS;
		tp = bpf_skc_to_tcp_sock(sk);
		if (tp)
			take_chrono(c, tp, true);
		begin_stream(skb, c, &s, now);
	}
	if (c) {
		c->in_next = s.seq + s.payload_len;
		c->in_known = 1;
	}
	return PASS;
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
		c->out_next = s->seq + s->payload_len;
		c->out_known = 1;
	}
	return true;
}

static __always_inline void end_walk(struct walk *w, struct segment *s)
{
	struct connection *c = w->connection;

	if (w->at < w->end && !is_rest(c->follow.phase)) {
		/* more chunks in one packet than a walk may take */
		note(c, lose(&c->follow), w->now);
		return;
	}
	if (c->blocked_since_ns && c->out_next == w->write_seq)
		unsent(c, counters_of(c->stream.slot), false, w->now);
	if (!c->stream.request_ns || !(s->flags & (FIN | RST)))
		return;
	if (is_until_close(&c->follow) && !(s->flags & RST))
		end_stream(c, END_COMPLETE, w->now);
	else if (c->follow.phase != PHASE_TRAILER)
		end_stream(c, END_SERVER_CLOSED, w->now);
	c->follow.phase = PHASE_LOST;
}

/* 64 KiB, the largest packet there is, hold fewer steps than this: the shortest chunk has 6 bytes,
 * two steps each */
#define STEPS_MAX 24576

/* Responses: as many chunks as a packet can hold (bpf_loop: kernels from 5.17). */
SEC("cgroup_skb/egress")
int stream_out(struct __sk_buff *skb)
{
	struct segment s = {};
	struct walk w = {};

	if (!begin_walk(skb, &w, &s))
		return PASS;
	bpf_loop(STEPS_MAX, step_in_loop, &w, 0);
	end_walk(&w, &s);
	return PASS;
}

/* A socket that closes without a word: a client that vanished, an engine that was killed. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(stream_close, const struct sock *sk, int old_state, int new_state)
{
	struct connection *c;
	struct tcp_sock *tp;

	if (new_state != TCP_CLOSE)
		return 0;
	c = bpf_sk_storage_get(&connections, (void *)sk, NULL, 0);
	if (c && c->stream.request_ns) {
		tp = bpf_skc_to_tcp_sock((void *)sk);
		if (tp)
			take_chrono(c, tp, false);
		c->follow.phase = PHASE_LOST;
		end_stream(c, END_CLOSED, bpf_ktime_get_ns());
	}
	return 0;
}
