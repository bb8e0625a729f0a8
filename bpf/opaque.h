/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* TLS and HTTP/2: who speaks when is all that is seen. Turns are timed and told as such. */
#ifndef SITS_OPAQUE_H
#define SITS_OPAQUE_H

#include "life.h"
#include "segment.h"

#define PREFACE 0x5448202a20495250ULL /* "PRI * HT", RFC 9113 section 3.4 */

/* A connection's first bytes: TLS's ClientHello (RFC 8446 section 5.1) or HTTP/2's preface. */
static __always_inline bool is_opaque(u64 bytes)
{
	bool is_handshake = (bytes & 0xffff) == 0x0316 && (bytes >> 16 & 0xff) <= 4;

	return bytes == PREFACE || (is_handshake && (bytes >> 40 & 0xff) == 1);
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
	e = reserve_start(c, 0);
	if (e)
		bpf_ringbuf_submit(e, wake_where_full());
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

#endif
