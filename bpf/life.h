/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What is told and counted of a stream: its start, its head, its chunks, its end. */
#ifndef SITS_LIFE_H
#define SITS_LIFE_H

#include "connection.h"

/* stream starts, first chunks and ends, for the agent. An engine that dies ends all it has at once,
 * faster than anybody reads: there is room for the ends of 20,000 streams. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 * 1024 * 1024);
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

static __always_inline struct target *target_of(struct connection *c)
{
	u32 slot = c->stream.slot; /* before 6.2, no key may lie in what a function was given */

	return bpf_map_lookup_elem(&targets, &slot);
}

/* The agent takes events by itself, a few times a second. It is woken only where they begin to fill
 * the ring: to wake it for each takes from the engine, at each, and from the agent a turn. */
#define WAKE_BYTES (512 * 1024)

static __always_inline u64 wake_where_full(void)
{
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) < WAKE_BYTES ? BPF_RB_NO_WAKEUP
									  : BPF_RB_FORCE_WAKEUP;
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
	bpf_ringbuf_submit(e, wake_where_full());
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

/* Whether bytes that could not leave are most of a gap that ends now. */
static __always_inline bool is_unsent(struct connection *c, u64 gap, u64 now)
{
	u64 since = c->blocked_since_ns;

	return since && since < now && 2 * (now - since) >= gap;
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
		if (is_unsent(c, gap, now))
			ADD(n->gaps_unsent, 1);
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

/* Room for a stream's start with `most` bytes of its request's head, a constant. */
static __always_inline struct start_event *reserve_start(struct connection *c, const u32 most)
{
	struct start_event *e;

	e = bpf_ringbuf_reserve(&events, __builtin_offsetof(struct start_event, head) + most, 0);
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
	return e;
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

#endif
