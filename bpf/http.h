/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Following an HTTP/1.1 response through the bytes of a connection.
 *
 * Packets are not chunks: TCP splits and merges them. So the response is followed by its own
 * framing (RFC 9112 section 7.1), wherever packets end. All that must outlive a packet is in
 * `struct follow`, which lives in the socket's storage; because every step reads it back from
 * there, the verifier sees one state and not a tree of them.
 */
#ifndef SITS_HTTP_H
#define SITS_HTTP_H

#include "layout.h"

/* in three groups, see is_rest and is_jump */
enum phase {
	PHASE_IDLE, /* between streams */
	PHASE_UNTIL_CLOSE, /* a body that ends with the connection */
	PHASE_OPAQUE, /* TLS or HTTP/2: only who speaks when is seen */
	PHASE_LOST, /* not HTTP as we know it: nothing more is said of this connection */

	PHASE_STATUS, /* request seen, response not begun: its first line */
	PHASE_HEAD, /* the rest of the response's head */
	PHASE_SIZE, /* a chunk's size line */
	PHASE_EXTENSION, /* what follows ';' there */
	PHASE_SIZE_LF,
	PHASE_TOKEN, /* a chunk of events before the first token: does it hold one? */
	PHASE_EVENT, /* an event of a body that is not chunked, to its empty line */
	PHASE_DATA_CR,
	PHASE_DATA_LF,
	PHASE_TRAILER, /* after the last chunk, to the empty line */

	PHASE_DATA, /* a chunk: its events are counted, its bytes jumped over */
	PHASE_BODY, /* a body of known length: jumped over */
};

/* what a step asks its caller to note */
enum happened {
	NOTHING,
	HEAD_DONE,
	CHUNK_DONE,
	ROLE_DONE, /* a chat's first frames, which name a role and hold no token */
	RESPONSE_DONE,
	LOST_TRACK,
};

/* beside the flags of `enum stream_flags` that a head sets */
enum follow_flags {
	FOLLOW_STARTED = 16, /* the first token went out: no chunk is looked into any more */
	FOLLOW_CONTENT_LINE = 32, /* in a header whose name begins so */
	FOLLOW_TRANSFER_LINE = 64,
	FOLLOW_LENGTH_DIGITS = 128,
};

struct follow {
	u64 left; /* bytes of this chunk or body still to come; a size while it is read; in a head,
		   * where its current line begins */
	u64 window; /* the last 8 bytes of a head (lower case), trailer or body of events */
	u64 length; /* Content-Length */
	u32 seen; /* bytes of this head or size line */
	u32 events; /* that ended in this chunk */
	u32 body_bytes; /* followed one by one, for the caller to count and clear */
	u16 status;
	u8 phase;
	u8 flags;
	u8 lines; /* enum line_state */
	u8 token; /* what was found in an event before the first token */
};

/* what the next byte of a body of events needs to know of those before it */
enum line_state {
	LINE_BEGINS = 0x80, /* a newline came last */
	LINE_RETURN = 0x40, /* a newline and a carriage return */
	LINE_EVENT = 0x01, /* a line of data since the last empty line */
	LINE_SHOWN = 0x02, /* this chunk has more than comments and empty lines */
};

enum token_found {
	TOKEN_ROLE = 1, /* "role": */
	TOKEN_TEXT = 2, /* a text that is not empty, or a tool call */
	TOKEN_VALUE = 4, /* after "content": and its like */
	TOKEN_QUOTE = 8, /* after the quote that opens such a value */
	TOKEN_LIST = 16, /* after the bracket that opens a list of calls */
	TOKEN_ROLES = 32, /* whole events of this chunk only named a role */
};

#define WORD(a, b, c, d, e, f, g, h)                                                              \
	((u64)(a) << 56 | (u64)(b) << 48 | (u64)(c) << 40 | (u64)(d) << 32 | (u64)(e) << 24 |     \
	 (u64)(f) << 16 | (u64)(g) << 8 | (u64)(h))
#define LAST_4 0xffffffffULL
#define LAST_7 0xffffffffffffffULL
#define BLANK_LINE 0x0d0a0d0aULL

/* 16 hex digits are the most a 64-bit size can have; a head longer than this is not followed */
#define SIZE_DIGITS_MAX 15
#define HEAD_BYTES_MAX 16384

static __always_inline void begin_response(struct follow *f)
{
	f->left = 0;
	f->window = 0;
	f->length = 0;
	f->seen = 0;
	f->status = 0;
	f->flags = 0;
	f->lines = LINE_BEGINS;
	f->token = 0;
	f->events = 0;
	f->phase = PHASE_STATUS;
}

static __always_inline void begin_size(struct follow *f)
{
	f->left = 0;
	f->seen = 0;
	f->phase = PHASE_SIZE;
}

/* Lines and events go on from one chunk to the next; what a chunk has begins anew. */
static __always_inline void begin_chunk(struct follow *f)
{
	f->events = 0;
	f->lines &= ~LINE_SHOWN;
	if (!(f->lines & (LINE_BEGINS | LINE_RETURN)))
		f->lines |= LINE_SHOWN;
	if (!(f->lines & LINE_EVENT))
		f->token = 0;
	f->token &= ~TOKEN_ROLES;
	f->phase = f->flags & STREAM_EVENTS && !(f->flags & FOLLOW_STARTED) ? PHASE_TOKEN
									     : PHASE_DATA;
}

static __always_inline u32 end_of_head(struct follow *f)
{
	/* 1xx announces another head; only 101 ends HTTP on the connection */
	if (f->status >= 100 && f->status < 200 && f->status != 101) {
		begin_response(f);
		return NOTHING;
	}
	if (f->status == 101 || f->status < 100) {
		f->phase = PHASE_LOST;
		return LOST_TRACK;
	}
	if (f->flags & STREAM_CHUNKED) {
		begin_size(f);
	} else if (f->status == 204 || f->status == 304 ||
		   (f->flags & STREAM_LENGTH && f->length == 0)) {
		f->left = 0;
		f->phase = PHASE_BODY; /* the caller sees HEAD_DONE first, then an empty body */
	} else if (f->flags & STREAM_LENGTH) {
		f->left = f->length;
		f->phase = PHASE_BODY;
	} else {
		f->phase = PHASE_UNTIL_CLOSE;
	}
	if (f->flags & STREAM_EVENTS && f->phase == PHASE_UNTIL_CLOSE)
		f->phase = PHASE_EVENT; /* no framing divides them: their empty lines do */
	return HEAD_DONE;
}

/* One byte of a response's head. A window of the last 8 bytes finds what matters in it, in any
 * case and only in the headers that say it; "HTTP/1.1 200 OK" puts the status at bytes 10 to 12. */
static __always_inline u32 head_byte(struct follow *f, u8 byte)
{
	u64 window, column;

	f->seen++;
	if (f->phase == PHASE_STATUS) {
		if (f->seen >= 10 && f->seen <= 12) {
			if (byte < '0' || byte > '9') {
				f->phase = PHASE_LOST;
				return LOST_TRACK;
			}
			f->status = f->status * 10 + (byte - '0');
		}
		if (f->seen == 5 && (f->window & LAST_4) != 0x68747470) { /* "http" */
			f->phase = PHASE_LOST;
			return LOST_TRACK;
		}
		if (f->seen > 12)
			f->phase = PHASE_HEAD;
	}
	if (f->seen > HEAD_BYTES_MAX) {
		f->phase = PHASE_LOST;
		return LOST_TRACK;
	}
	if (byte >= 'A' && byte <= 'Z')
		byte += 'a' - 'A';
	window = f->window << 8 | byte;
	f->window = window;

	if (f->flags & FOLLOW_LENGTH_DIGITS) {
		if (byte >= '0' && byte <= '9') {
			f->length = f->length * 10 + (byte - '0');
			f->flags |= STREAM_LENGTH;
		} else if (byte != ' ') {
			f->flags &= ~FOLLOW_LENGTH_DIGITS;
		}
	}
	if ((window & LAST_4) == BLANK_LINE)
		return end_of_head(f);
	if (byte == '\n') {
		f->left = f->seen;
		f->flags &= ~(FOLLOW_CONTENT_LINE | FOLLOW_TRANSFER_LINE | FOLLOW_LENGTH_DIGITS);
		return NOTHING;
	}
	column = f->seen - f->left;
	if (column == 7 && (window & LAST_7) == WORD(0, 'c', 'o', 'n', 't', 'e', 'n', 't'))
		f->flags |= FOLLOW_CONTENT_LINE;
	else if (column == 8 && window == WORD('t', 'r', 'a', 'n', 's', 'f', 'e', 'r'))
		f->flags |= FOLLOW_TRANSFER_LINE;
	else if (f->flags & FOLLOW_TRANSFER_LINE &&
		 (window & LAST_7) == WORD(0, 'c', 'h', 'u', 'n', 'k', 'e', 'd'))
		f->flags |= STREAM_CHUNKED;
	else if (f->flags & FOLLOW_CONTENT_LINE && column == 15 &&
		 window == WORD('-', 'l', 'e', 'n', 'g', 't', 'h', ':')) {
		f->length = 0;
		f->flags |= FOLLOW_LENGTH_DIGITS;
	} else if (f->flags & FOLLOW_CONTENT_LINE &&
		   window == WORD('t', '-', 's', 't', 'r', 'e', 'a', 'm'))
		f->flags |= STREAM_EVENTS;
	return NOTHING;
}

static __always_inline u32 lose(struct follow *f)
{
	f->phase = PHASE_LOST;
	return LOST_TRACK;
}

static __always_inline u32 size_byte(struct follow *f, u8 byte)
{
	u8 digit;

	if (byte == '\r') {
		if (!f->seen)
			return lose(f);
		f->phase = PHASE_SIZE_LF;
		return NOTHING;
	}
	if (byte == ';') {
		f->phase = PHASE_EXTENSION;
		return NOTHING;
	}
	if (byte >= '0' && byte <= '9')
		digit = byte - '0';
	else if (byte >= 'a' && byte <= 'f')
		digit = byte - 'a' + 10;
	else if (byte >= 'A' && byte <= 'F')
		digit = byte - 'A' + 10;
	else
		return lose(f);
	if (f->seen >= SIZE_DIGITS_MAX)
		return lose(f);
	f->seen++;
	f->left = f->left << 4 | digit;
	return NOTHING;
}

/* 0x80 at each byte of `word` that equals `byte`, exactly. */
static __always_inline u64 bytes_equal(u64 word, u8 byte)
{
	u64 x = word ^ (0x0101010101010101ULL * byte);
	u64 low = 0x7f7f7f7f7f7f7f7fULL;

	return ~(((x & low) + low) | x | low);
}

/* Up to eight bytes of a body of events, the first in the lowest byte of `word`, those past `n`
 * zero: how many events end in them. An event is lines of which one is data ("data:" is the only
 * field that begins with a d), up to an empty line; comments, which keep a connection alive, are
 * none. Lines end in a newline, with or without a carriage return before it.
 * https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation */
static __always_inline void count_events(struct follow *f, u64 word, u32 n)
{
	u64 newlines = bytes_equal(word, '\n'), returns = bytes_equal(word, '\r');
	u64 begins = newlines << 8 | (f->lines & LINE_BEGINS);
	u64 between = returns & begins;
	u64 ends = newlines & (begins | between << 8 | (u64)(f->lines & LINE_RETURN) << 1);
	u64 data = (bytes_equal(word, 'd') & begins) | (f->lines & LINE_EVENT);
	u64 shown = begins & ~(newlines | returns | bytes_equal(word, ':'));
	/* each line of data carries through the ones up to the next empty line's bit and sets it,
	 * or leaves the word when there is none */
	u64 carried = data + ~ends;
	u32 last = 8 * (n - 1);
	u8 lines = f->lines & LINE_SHOWN;

	/* a bit a byte, added up by a multiplication */
	f->events += ((carried & ends) >> 7) * 0x0101010101010101ULL >> 56;
	if (shown << (56 - last))
		lines |= LINE_SHOWN;
	f->lines = lines | (newlines >> last & LINE_BEGINS) |
		   (between >> last & LINE_BEGINS) >> 1 | (carried < data);
}

/* The same, and the last 8 bytes are kept: an end may be looked for in them. */
static __always_inline void take_events(struct follow *f, u64 word, u32 n)
{
	u64 in_order = __builtin_bswap64(word);

	count_events(f, word, n);
	f->window = n == 8 ? in_order : f->window << 8 * n | in_order >> (64 - 8 * n);
}

/* "data: [DONE]" ends an OpenAI-style stream and carries nothing a user sees: no value in JSON
 * ends like it. */
static __always_inline bool ends_in_mark(struct follow *f)
{
	return f->window == WORD('[', 'D', 'O', 'N', 'E', ']', '\n', '\n') ||
	       f->window == WORD('O', 'N', 'E', ']', '\r', '\n', '\r', '\n');
}

/* A chunk is through, or an event of a body that is not chunked: what was it? */
static __always_inline u32 data_ends(struct follow *f)
{
	if (!(f->flags & STREAM_EVENTS))
		return CHUNK_DONE;
	if (!(f->lines & LINE_SHOWN) && !f->events)
		return NOTHING;
	if (ends_in_mark(f)) {
		if (f->events <= 1)
			return NOTHING;
		f->events--;
	}
	if (f->flags & FOLLOW_STARTED)
		return CHUNK_DONE;
	if (f->token & (TOKEN_ROLE | TOKEN_ROLES) && !(f->token & TOKEN_TEXT))
		return ROLE_DONE;
	f->flags |= FOLLOW_STARTED;
	return CHUNK_DONE;
}

/* Before the first token: a chat begins with a frame that names the assistant's role and whose
 * texts are empty, null or missing. Anything else is a token: a completion's text, a content or
 * reasoning that is not empty, a tool call. */
static __always_inline void look_for_token(struct follow *f, u64 window)
{
	u8 byte = window, token = f->token;

	if (token & TOKEN_QUOTE) {
		token &= ~TOKEN_QUOTE;
		if (byte != '"')
			token |= TOKEN_TEXT;
	} else if (token & TOKEN_LIST && byte != ' ') {
		token &= ~TOKEN_LIST;
		if (byte != ']')
			token |= TOKEN_TEXT;
	} else if (token & TOKEN_VALUE && byte != ' ') {
		token &= ~TOKEN_VALUE;
		if (byte == '"')
			token |= TOKEN_QUOTE;
		else if (byte == '[')
			token |= TOKEN_LIST;
		else if (byte == '{')
			token |= TOKEN_TEXT;
	}
	if ((window & LAST_7) == WORD(0, '"', 'r', 'o', 'l', 'e', '"', ':'))
		token |= TOKEN_ROLE;
	else if (window == WORD('o', 'n', 't', 'e', 'n', 't', '"', ':') || /* reasoning_content */
		 window == WORD('s', 'o', 'n', 'i', 'n', 'g', '"', ':') || /* reasoning */
		 window == WORD('_', 'c', 'a', 'l', 'l', 's', '"', ':') || /* tool_calls */
		 window == WORD('n', '_', 'c', 'a', 'l', 'l', '"', ':')) /* function_call */
		token |= TOKEN_VALUE;
	f->token = token;
}

/* An event is through, before the first token. Each that shares a chunk is judged for itself: one
 * that names no role is a token, whatever stands beside it; the mark is neither. */
static __always_inline void judge_event(struct follow *f)
{
	u8 token = f->token;

	if (token & TOKEN_TEXT)
		return;
	if (token & TOKEN_ROLE)
		f->token = TOKEN_ROLES;
	else if (!ends_in_mark(f))
		f->token = TOKEN_TEXT;
}

/* One byte of a chunk before the first token, or of a body that is not chunked. */
static __always_inline u32 event_byte(struct follow *f, u8 byte)
{
	u32 happened, events = f->events;

	f->body_bytes++;
	take_events(f, byte, 1);
	if (!(f->flags & FOLLOW_STARTED)) {
		look_for_token(f, f->window);
		if (f->events != events)
			judge_event(f);
	}
	if (f->phase == PHASE_TOKEN) {
		if (--f->left)
			return NOTHING;
		f->phase = PHASE_DATA_CR;
		return data_ends(f);
	}
	if (!f->events)
		return NOTHING;
	happened = data_ends(f);
	f->token = 0;
	if (happened == NOTHING)
		f->events = 0;
	return happened;
}

/* One byte of framing; never called in a phase that is jumped over. */
static __always_inline u32 framing_byte(struct follow *f, u8 byte)
{
	switch (f->phase) {
	case PHASE_STATUS:
	case PHASE_HEAD:
		return head_byte(f, byte);
	case PHASE_SIZE:
		return size_byte(f, byte);
	case PHASE_EXTENSION:
		if (byte == '\r')
			f->phase = PHASE_SIZE_LF;
		return NOTHING;
	case PHASE_SIZE_LF:
		if (byte != '\n')
			return lose(f);
		if (f->left) {
			begin_chunk(f);
			return NOTHING;
		}
		f->window = 0x0d0a;
		f->phase = PHASE_TRAILER;
		return RESPONSE_DONE;
	case PHASE_TOKEN:
	case PHASE_EVENT:
		return event_byte(f, byte);
	case PHASE_DATA_CR:
		if (byte != '\r')
			return lose(f);
		f->phase = PHASE_DATA_LF;
		return NOTHING;
	case PHASE_DATA_LF:
		if (byte != '\n')
			return lose(f);
		begin_size(f);
		return NOTHING;
	case PHASE_TRAILER:
		f->window = f->window << 8 | byte;
		if ((f->window & LAST_4) == BLANK_LINE)
			f->phase = PHASE_IDLE;
		return NOTHING;
	}
	return NOTHING;
}

/* Jump over up to `have` bytes of a chunk or body; returns how many, and what that completed. */
static __always_inline u32 jump(struct follow *f, u32 have, u32 *happened)
{
	u32 n = have;

	if (f->left < have)
		n = f->left;
	f->left -= n;
	*happened = NOTHING;
	if (f->left)
		return n;
	if (f->phase == PHASE_DATA) {
		f->phase = PHASE_DATA_CR;
		*happened = data_ends(f);
	} else {
		f->phase = PHASE_IDLE;
		*happened = RESPONSE_DONE;
	}
	return n;
}

static __always_inline bool is_jump(u8 phase)
{
	return phase >= PHASE_DATA;
}

static __always_inline bool is_rest(u8 phase)
{
	return phase <= PHASE_LOST;
}

#endif
