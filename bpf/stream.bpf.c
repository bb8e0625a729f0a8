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
#define TCP_ESTABLISHED 1
#define TCP_SYN_RECV 3
#define TCP_CLOSE 7
#define AF_INET 2
#define FIN 0x01
#define SYN 0x02
#define RST 0x04

/* stream starts, first chunks and ends, for the agent */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} events SEC(".maps");

/* a request that came with the last packet of its handshake, before its socket was there */
struct early_key {
	u32 remote_ip[4]; /* IPv4 as IPv6 knows it */
	u16 remote_port;
	u16 local_port;
};

struct early {
	u64 at_ns;
	u32 slot;
	u32 in_next;
	u32 head_len;
	u32 pad;
	u8 head[HEAD_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct early_key);
	__type(value, struct early);
} early_requests SEC(".maps");

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

/* `n`, which is not 0, or `most`, a power of two: in a form whose bounds every kernel's verifier can
 * follow. 64 bits wide, for it loses the bounds of a narrower copy. */
static __always_inline u64 at_most(u64 n, u64 most)
{
	if (n > most)
		n = most;
	barrier_var(n);
	return ((n - 1) & (most - 1)) + 1;
}

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

static __always_inline struct target *target_of(struct connection *c)
{
	u32 slot = c->stream.slot; /* before 6.2, no key may lie in what a function was given */

	return bpf_map_lookup_elem(&targets, &slot);
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

/* No first chunk in time, whether it comes late or never. Answers that are no event
 * stream have none to wait for. */
static __always_inline void check_deadline(struct connection *c, struct counters *n, u64 now)
{
	struct target *target = target_of(c);

	if (!target || !target->first_chunk_deadline_ns)
		return;
	if (now - c->stream.request_ns > target->first_chunk_deadline_ns)
		ADD(n->deadlines_missed, 1);
}

static __always_inline void count_end(struct connection *c, struct counters *n, u32 reason, u64 now)
{
	if (reason == END_COMPLETE)
		ADD(n->ends_complete, 1);
	else
		ADD(n->ends_early, 1);
	ADD(n->body_bytes, c->stream.body_bytes);
	/* no answer at all may have been to become a stream of events */
	if (!c->stream.first_ns && (c->stream.flags & STREAM_EVENTS || !c->stream.head_ns)) {
		ADD(n->ends_unstarted, 1);
		check_deadline(c, n, now);
	}
}

/* A function of its own to the verifier: checked once, not once for each place it is called at. */
__noinline int end_stream(struct connection *c, u32 reason, u64 now)
{
	struct counters *n;

	if (!c)
		return 0;
	n = counters_of(c->stream.slot);

	if (n && !(c->stream.flags & STREAM_OPAQUE))
		count_end(c, n, reason, now);
	end_blocked(c, n, now);
	tell(c, EVENT_END, reason, now);
	c->stream.request_ns = 0;
	return 0;
}

static __always_inline void first_chunk(struct connection *c, struct counters *n, u64 now)
{
	struct target *target = target_of(c);
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
	struct target *target = target_of(c);
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

/* A function of its own for the same reason: it would be checked for each byte of a window. */
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
		c->stream.role_frames += c->follow.events;
		n = counters_of(c->stream.slot);
		if (n)
			ADD(n->role_frames, c->follow.events);
		c->follow.events = 0;
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

#define WINDOW 16

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

/* The headers of a TCP packet as cgroup_skb shows it: from the IP header on. */
struct segment {
	u32 payload_at;
	u32 payload_len;
	u32 seq;
	u16 window;
	u8 flags;
};

static __always_inline bool parse_segment(struct __sk_buff *skb, struct segment *s)
{
	u8 tcp[16], first, protocol;
	u32 ip_len;

	if (bpf_skb_load_bytes(skb, 0, &first, 1))
		return false;
	if (first >> 4 == 4) {
		ip_len = (first & 15) * 4;
		if (bpf_skb_load_bytes(skb, 9, &protocol, 1))
			return false;
	} else {
		/* one extension header occurs on a server's TCP: a packet of more than 64 KiB (BIG TCP,
		 * kernels from 5.19) says its length in a hop-by-hop option of 8 bytes */
		ip_len = 40;
		if (bpf_skb_load_bytes(skb, 6, &protocol, 1))
			return false;
		if (!protocol) {
			if (bpf_skb_load_bytes(skb, 40, &protocol, 1))
				return false;
			ip_len = 48;
		}
	}
	if (protocol != TCP || bpf_skb_load_bytes(skb, ip_len, tcp, sizeof(tcp)))
		return false;
	s->seq = (u32)tcp[4] << 24 | (u32)tcp[5] << 16 | (u32)tcp[6] << 8 | tcp[7];
	s->flags = tcp[13];
	s->window = (u16)tcp[14] << 8 | tcp[15];
	s->payload_at = ip_len + (tcp[12] >> 4) * 4;
	s->payload_len = skb->len > s->payload_at ? skb->len - s->payload_at : 0;
	return true;
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

/* Nothing of the stream before stays but what belongs to the connection. */
static __always_inline void begin_stream(struct connection *c, struct tcp_sock *tp, u64 now)
{
	struct stream *stream = &c->stream;

	end_blocked(c, counters_of(stream->slot), now);
	__builtin_memset(&stream->request_ns, 0,
			 (void *)&stream->number - (void *)&stream->request_ns);
	__builtin_memset(&stream->chunks, 0, (void *)&stream->local_port - (void *)&stream->chunks);
	begin_response(&c->follow);
	stream->number++;
	stream->request_ns = now;
	if (tp)
		take_chrono(c, tp, true);
}

static __always_inline struct start_event *reserve_start(struct connection *c)
{
	struct start_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		dropped();
		return NULL;
	}
	e->event.at_ns = c->stream.request_ns;
	e->event.kind = EVENT_START;
	e->event.reason = 0;
	e->event.stream = c->stream;
	e->head_len = 0;
	e->pad = 0;
	__builtin_memset(e->head, 0, sizeof(e->head));
	return e;
}

/* in the order of a packet's bytes, the first in the lowest */
#define POST ('P' | 'O' << 8 | 'S' << 16 | (u64)'T' << 24 | (u64)' ' << 32)
#define POST_BYTES 5
#define PREFACE 0x5448202a20495250ULL /* "PRI * HT", RFC 9113 section 3.4 */

static __always_inline void begin_request(struct __sk_buff *skb, struct bpf_sock *sk,
					  struct connection *c, struct segment *s)
{
	struct counters *n = counters_of(c->stream.slot);
	u32 before = c->post_seen;
	struct start_event *e;
	u64 len;

	begin_stream(c, bpf_skc_to_tcp_sock(sk), c->post_ns);
	if (n)
		ADD(n->requests, 1);
	e = reserve_start(c);
	if (!e)
		return;
	if (!before) {
		len = at_most(s->payload_len, HEAD_BYTES);
		if (!bpf_skb_load_bytes(skb, s->payload_at, e->head, len))
			e->head_len = len;
	} else if (before < POST_BYTES) {
		*(u64 *)e->head = POST;
		len = at_most(s->payload_len, HEAD_BYTES / 2);
		if (!bpf_skb_load_bytes(skb, s->payload_at, e->head + before, len))
			e->head_len = before + len;
	}
	bpf_ringbuf_submit(e, 0);
}

/* The first bytes of a packet's payload, as many as there are of eight. */
static __always_inline u64 first_bytes(struct __sk_buff *skb, struct segment *s)
{
	u64 bytes = 0, n = at_most(s->payload_len, sizeof(bytes));

	return bpf_skb_load_bytes(skb, s->payload_at, &bytes, n) ? 0 : bytes;
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

/* A connection's first bytes: TLS's ClientHello (RFC 8446 section 5.1) or HTTP/2's preface. */
static __always_inline bool is_opaque(u64 bytes)
{
	bool is_handshake = (bytes & 0xffff) == 0x0316 && (bytes >> 16 & 0xff) <= 4;

	return bytes == PREFACE || (is_handshake && (bytes >> 40 & 0xff) == 1);
}

static __always_inline void note_lost(void)
{
	struct health *h = health_here();

	if (h)
		ADD(h->lost_streams, 1);
}

static __always_inline void note_no_storage(void)
{
	struct health *h = health_here();

	if (h)
		ADD(h->storage_full, 1);
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

static __always_inline void as_ipv6(u32 *ip, u32 ip4)
{
	ip[0] = 0;
	ip[1] = 0;
	ip[2] = bpf_htonl(0xffff);
	ip[3] = ip4;
}

/* The last packet of a handshake brought a request: `sk` still listens, the connection's own socket
 * is made from this packet. Keep the request for it. */
static __always_inline void keep_early(struct __sk_buff *skb, struct bpf_sock *sk, u32 slot,
				       struct segment *s)
{
	struct early early = { .at_ns = bpf_ktime_get_ns(), .slot = slot };
	struct early_key key = { .local_port = sk->src_port };
	u64 len = at_most(s->payload_len, HEAD_BYTES);
	struct early *known;
	u32 ip4 = 0;
	u8 first;

	if (bpf_skb_load_bytes(skb, 0, &first, 1))
		return;
	if (first >> 4 == 4) {
		bpf_skb_load_bytes(skb, 12, &ip4, sizeof(ip4));
		as_ipv6(key.remote_ip, ip4);
		bpf_skb_load_bytes(skb, (first & 15) * 4, &key.remote_port, 2);
	} else {
		bpf_skb_load_bytes(skb, 8, key.remote_ip, sizeof(key.remote_ip));
		bpf_skb_load_bytes(skb, 40, &key.remote_port, 2);
	}
	early.in_next = s->seq + s->payload_len;
	known = bpf_map_lookup_elem(&early_requests, &key);
	if (known && known->in_next == early.in_next)
		return; /* sent again: the socket could not be made */
	if (!bpf_skb_load_bytes(skb, s->payload_at, early.head, len))
		early.head_len = len;
	if (bpf_map_update_elem(&early_requests, &key, &early, BPF_ANY))
		note_lost();
}

/* Smaller than this are a TLS session's and HTTP/2's own messages: acknowledged settings, windows
 * and pings, each with TLS's 22 bytes around it; a request or a chunk is longer. */
#define SPEECH_BYTES 64

/* first bytes of a record that is the handshake's (RFC 8446 section 5.1) */
#define TLS_CHANGE_CIPHER 0x14
#define TLS_HANDSHAKE 0x16

/* The client speaks on an opaque connection. When the engine has answered what it said before, its
 * next turn begins; what came with the first is hidden among session tickets and settings, so that
 * turn is counted and not timed. */
static __always_inline void opaque_in(struct bpf_sock *sk, struct connection *c, struct segment *s,
				      u64 bytes, u64 now)
{
	struct counters *n = counters_of(c->stream.slot);
	u8 first = bytes;
	struct start_event *e;

	if (s->payload_len < SPEECH_BYTES || first == TLS_CHANGE_CIPHER || first == TLS_HANDSHAKE)
		return;
	if (c->turns && !c->spoke)
		return;
	if (c->stream.request_ns)
		end_stream(c, END_COMPLETE, now);
	c->spoke = 0;
	if (n)
		ADD(n->opaque, 1);
	if (!c->turns) {
		c->turns = 1;
		return;
	}
	begin_stream(c, bpf_skc_to_tcp_sock(sk), now);
	c->follow.phase = PHASE_OPAQUE;
	c->stream.flags = STREAM_OPAQUE;
	c->burst_bytes = 0;
	e = reserve_start(c);
	if (e)
		bpf_ringbuf_submit(e, 0);
}

/* The engine speaks: what it wrote at once is a chunk, once the last of it has left. */
static __always_inline void opaque_out(struct connection *c, u32 len, bool all_left, u64 now)
{
	u64 gap;

	c->burst_bytes += len;
	if (!all_left || !len)
		return;
	len = c->burst_bytes;
	c->burst_bytes = 0;
	if (len < SPEECH_BYTES)
		return;
	c->spoke = 1;
	if (!c->stream.request_ns)
		return;
	c->stream.body_bytes += len;
	c->stream.chunks++;
	if (!c->stream.first_ns) {
		c->stream.first_ns = now;
		tell(c, EVENT_FIRST, 0, now);
	} else {
		gap = now - c->stream.last_ns;
		c->stream.gap_sum_ns += gap;
		if (gap > c->stream.gap_max_ns)
			c->stream.gap_max_ns = gap;
	}
	c->stream.last_ns = now;
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
	if (!s.payload_len)
		return PASS;
	if (c && c->in_known && (int)(s.seq + s.payload_len - c->in_next) <= 0)
		return PASS; /* sent again by the client */
	bytes_in(skb, sk, c, &s);
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
		if ((int)(c->out_next - c->blocked_seq) >= 0)
			end_blocked(c, counters_of(c->stream.slot), w->now);
		c->out_next = s->seq + s->payload_len;
		c->out_ns = w->now;
		c->heard = 0;
		if (!c->stream.write_ns && c->stream.request_ns)
			c->stream.write_ns = w->now;
		c->out_known = 1;
	}
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
	if (!c->stream.request_ns || !(s->flags & (FIN | RST)))
		return;
	if (is_until_close(c) && !(s->flags & RST))
		end_stream(c, END_COMPLETE, w->now);
	else if (c->follow.phase != PHASE_TRAILER)
		end_stream(c, END_SERVER_CLOSED, w->now);
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

/* The connection's own socket is there: take up the request that came with the handshake. */
static __always_inline void take_up_early(struct sock *sk)
{
	struct early_key key = {};
	struct start_event *e;
	struct connection *c;
	struct counters *n;
	struct early *early;
	u16 family, remote_port;

	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	remote_port = BPF_CORE_READ(sk, __sk_common.skc_dport);
	key.remote_port = remote_port;
	key.local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
	if (family == AF_INET)
		as_ipv6(key.remote_ip, BPF_CORE_READ(sk, __sk_common.skc_daddr));
	else
		BPF_CORE_READ_INTO(&key.remote_ip, sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32);
	early = bpf_map_lookup_elem(&early_requests, &key);
	if (!early)
		return;
	c = bpf_sk_storage_get(&connections, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		note_no_storage();
		return;
	}
	c->generation = generation_now();
	c->stream.slot = early->slot;
	c->stream.connection = bpf_get_socket_cookie(sk);
	c->stream.local_port = key.local_port;
	c->stream.remote_port = bpf_ntohs(remote_port);
	c->stream.family = family;
	if (family == AF_INET)
		c->stream.remote_ip[0] = key.remote_ip[3];
	else
		__builtin_memcpy(c->stream.remote_ip, key.remote_ip, sizeof(key.remote_ip));
	c->in_next = early->in_next;
	c->in_known = 1;
	begin_stream(c, bpf_skc_to_tcp_sock(sk), early->at_ns);
	n = counters_of(c->stream.slot);
	if (n)
		ADD(n->requests, 1);
	e = reserve_start(c);
	if (e) {
		if (!bpf_probe_read_kernel(e->head, sizeof(e->head), early->head))
			e->head_len = early->head_len;
		bpf_ringbuf_submit(e, 0);
	}
	bpf_map_delete_elem(&early_requests, &key);
}

/* Sockets that begin with a request, and those that close without a word: a client that vanished,
 * an engine that resets. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(socket_state, struct sock *sk, int old_state, int new_state)
{
	struct connection *c;
	struct tcp_sock *tp;
	u64 now;

	if (old_state == TCP_SYN_RECV && new_state == TCP_ESTABLISHED) {
		take_up_early(sk);
		return 0;
	}
	if (new_state != TCP_CLOSE)
		return 0;
	c = bpf_sk_storage_get(&connections, sk, NULL, 0);
	if (!c)
		return 0;
	now = bpf_ktime_get_ns();
	if (c->stream.request_ns) {
		tp = bpf_skc_to_tcp_sock(sk);
		if (tp)
			take_chrono(c, tp, false);
		/* an error is the network's; without one the engine threw the connection away */
		end_stream(c, BPF_CORE_READ(sk, sk_err) ? END_CLOSED : END_SERVER_CLOSED, now);
	}
	c->follow.phase = PHASE_LOST;
	end_blocked(c, counters_of(c->stream.slot), now);
	return 0;
}
