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

enum phase {
	PHASE_IDLE, /* between streams */
	PHASE_STATUS, /* request seen, response not begun: its first line */
	PHASE_HEAD, /* the rest of the response's head */
	PHASE_SIZE, /* a chunk's size line */
	PHASE_EXTENSION, /* what follows ';' there */
	PHASE_SIZE_LF,
	PHASE_MARK, /* a chunk's first bytes: is it the [DONE] mark? */
	PHASE_TOKEN, /* a chunk before the first token: does it hold one? */
	PHASE_EVENT, /* an event of a body that is not chunked, to its empty line */
	PHASE_DATA, /* the rest of a chunk: its events are counted, its bytes jumped over */
	PHASE_DATA_CR,
	PHASE_DATA_LF,
	PHASE_TRAILER, /* after the last chunk, to the empty line */
	PHASE_BODY, /* a body of known length: jumped over */
	PHASE_UNTIL_CLOSE, /* a body that ends with the connection */
	PHASE_LOST, /* not HTTP as we know it: nothing more is said of this connection */
};

/* what a step asks its caller to note */
enum happened {
	NOTHING,
	HEAD_DONE,
	CHUNK_DONE,
	ROLE_DONE, /* a chat's first frame, which names a role and holds no token */
	RESPONSE_DONE,
	LOST_TRACK,
};

/* beside the flags of `enum stream_flags` */
enum follow_flags {
	FOLLOW_STARTED = 8, /* the first token went out: no chunk is looked into any more */
	FOLLOW_CONTENT_LINE = 16, /* in a header whose name begins so */
	FOLLOW_TRANSFER_LINE = 32,
	FOLLOW_LENGTH_DIGITS = 64,
	FOLLOW_IS_MARK = 128,
};

struct follow {
	u64 left; /* bytes of this chunk or body still to come; a size while it is read; in a head,
		   * where its current line begins */
	u64 window; /* the last 8 bytes of a head, lower case */
	u64 length; /* Content-Length */
	u32 seen; /* bytes of this head, size line or chunk */
	u16 status;
	u8 phase;
	u8 flags;
	u8 lines; /* the last bytes as newline masks, see count_events */
	u8 token; /* what was found in a chunk before the first token */
	u16 events; /* of this chunk */
};

enum token_found {
	TOKEN_ROLE = 1, /* "role": */
	TOKEN_TEXT = 2, /* a content that is not empty, or a tool call */
	TOKEN_VALUE = 4, /* after "content": */
	TOKEN_QUOTE = 8, /* after "content":" */
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
	f->lines = 0;
	f->token = 0;
	f->events = 0;
	f->phase = PHASE_STATUS;
}

static __always_inline void begin_size(struct follow *f)
{
	f->left = 0;
	f->seen = 0;
	f->window = 0;
	f->lines = 0;
	f->token = 0;
	f->events = 0;
	f->flags &= ~FOLLOW_IS_MARK;
	f->phase = PHASE_SIZE;
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
	if (f->flags & STREAM_EVENTS && f->phase == PHASE_UNTIL_CLOSE) {
		/* no framing divides them: events are followed by their empty lines */
		f->seen = 0;
		f->window = 0;
		f->phase = PHASE_MARK;
	}
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

/* "data: [DONE]" ends an OpenAI-style stream and carries nothing a user sees */
static __always_inline u8 mark_byte(u32 at)
{
	u64 first = WORD('d', 'a', 't', 'a', ':', ' ', '[', 'D');
	u64 rest = WORD('O', 'N', 'E', ']', 0, 0, 0, 0);

	if (at < 8)
		return first >> (8 * (7 - at));
	return rest >> (8 * (7 - (at & 7)));
}
#define MARK_BYTES 12

/* Eight bytes of a chunk as masks with 0x80 at each newline and each carriage return: how many
 * events end in them, that is, newlines after a newline, with or without a carriage return between.
 * `lines` keeps what the next bytes need to know of these. */
static __always_inline void count_events(struct follow *f, u64 newlines, u64 returns, u32 n)
{
	u64 after_newline = newlines << 8 | (f->lines & 0x80);
	u64 between = returns & after_newline;
	u64 after_return = between << 8 | (u64)(f->lines & 0x40) << 1;
	u64 ends = newlines & (after_newline | after_return);
	u32 last = 8 * (n - 1);

	/* a bit a byte, added up by a multiplication */
	f->events += (ends >> 7) * 0x0101010101010101ULL >> 56;
	f->lines = (newlines >> last & 0x80) | (between >> last & 0x80) >> 1;
}

/* 0x80 at each byte of `word` that equals `byte`, exactly. */
static __always_inline u64 bytes_equal(u64 word, u8 byte)
{
	u64 x = word ^ (0x0101010101010101ULL * byte);
	u64 low = 0x7f7f7f7f7f7f7f7fULL;

	return ~(((x & low) + low) | x | low);
}

static __always_inline u32 chunk_ends(struct follow *f)
{
	f->phase = PHASE_DATA_CR;
	if (f->flags & FOLLOW_IS_MARK)
		return NOTHING;
	if (!(f->flags & STREAM_EVENTS) || f->flags & FOLLOW_STARTED)
		return CHUNK_DONE;
	if (f->token & TOKEN_ROLE && !(f->token & TOKEN_TEXT))
		return ROLE_DONE;
	f->flags |= FOLLOW_STARTED;
	return CHUNK_DONE;
}

/* The end of an event in a body that is not chunked. */
static __always_inline u32 event_ends(struct follow *f)
{
	bool mark = f->flags & FOLLOW_IS_MARK, blank = f->seen < 3;

	f->flags &= ~FOLLOW_IS_MARK;
	f->seen = 0;
	f->window = 0;
	f->phase = PHASE_MARK;
	if (mark || blank)
		return NOTHING;
	f->events = 1;
	if (f->flags & FOLLOW_STARTED)
		return CHUNK_DONE;
	if (f->token & TOKEN_ROLE && !(f->token & TOKEN_TEXT)) {
		f->token = 0;
		return ROLE_DONE;
	}
	f->flags |= FOLLOW_STARTED;
	return CHUNK_DONE;
}

/* Before the first token: a chat begins with a frame that names the assistant's role and whose
 * content is empty, null or missing. Anything else is a token: a completion's text, a content that
 * is not empty (a reasoning_content too), a tool call. */
static __always_inline void look_for_token(struct follow *f, u8 byte)
{
	u64 window = f->window << 8 | byte;

	f->window = window;
	if (f->token & TOKEN_QUOTE) {
		f->token &= ~TOKEN_QUOTE;
		if (byte != '"')
			f->token |= TOKEN_TEXT;
	} else if (f->token & TOKEN_VALUE) {
		if (byte == '"')
			f->token = (f->token & ~TOKEN_VALUE) | TOKEN_QUOTE;
		else if (byte != ' ')
			f->token &= ~TOKEN_VALUE;
	}
	if ((window & LAST_7) == WORD(0, '"', 'r', 'o', 'l', 'e', '"', ':'))
		f->token |= TOKEN_ROLE;
	else if (window == WORD('o', 'n', 't', 'e', 'n', 't', '"', ':'))
		f->token |= TOKEN_VALUE;
	else if (window == WORD('_', 'c', 'a', 'l', 'l', 's', '"', ':'))
		f->token |= TOKEN_TEXT;
}

/* What follows a chunk's first bytes. */
static __always_inline u8 rest_of_chunk(struct follow *f)
{
	if (!(f->flags & STREAM_CHUNKED))
		return PHASE_EVENT;
	if (f->flags & STREAM_EVENTS && !(f->flags & FOLLOW_STARTED) &&
	    !(f->flags & FOLLOW_IS_MARK))
		return PHASE_TOKEN;
	return PHASE_DATA;
}

/* One byte of a body whose events are looked into: of a chunk, or of a body that is not chunked. */
static __always_inline u32 event_byte(struct follow *f, u8 byte)
{
	if (f->phase == PHASE_MARK) {
		if (f->seen >= MARK_BYTES || byte != mark_byte(f->seen)) {
			f->phase = rest_of_chunk(f);
		} else if (++f->seen == MARK_BYTES) {
			f->flags |= FOLLOW_IS_MARK;
			f->phase = rest_of_chunk(f);
		}
	}
	if (f->flags & STREAM_CHUNKED) {
		if (!(f->flags & FOLLOW_STARTED))
			look_for_token(f, byte);
		count_events(f, byte == '\n' ? 0x80 : 0, byte == '\r' ? 0x80 : 0, 1);
		f->left--;
		return f->left ? NOTHING : chunk_ends(f);
	}
	if (f->seen < 0xffff)
		f->seen += f->phase == PHASE_EVENT;
	if (!(f->flags & FOLLOW_STARTED))
		look_for_token(f, byte);
	else
		f->window = f->window << 8 | byte;
	if ((f->window & 0xffff) == 0x0a0a || (f->window & LAST_4) == BLANK_LINE)
		return event_ends(f);
	return NOTHING;
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
		f->seen = 0;
		if (f->left) {
			f->phase = PHASE_MARK;
			return NOTHING;
		}
		f->window = 0x0d0a;
		f->phase = PHASE_TRAILER;
		return RESPONSE_DONE;
	case PHASE_MARK:
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
		*happened = chunk_ends(f);
	} else {
		f->phase = PHASE_IDLE;
		*happened = RESPONSE_DONE;
	}
	return n;
}

static __always_inline bool is_jump(u8 phase)
{
	return phase == PHASE_DATA || phase == PHASE_BODY;
}

/* Bytes of a body that are looked at one by one. */
static __always_inline bool is_body(u8 phase)
{
	return phase == PHASE_MARK || phase == PHASE_TOKEN || phase == PHASE_EVENT;
}

/* A body that ends when the engine closes the connection. */
static __always_inline bool is_until_close(struct follow *f)
{
	return f->phase == PHASE_UNTIL_CLOSE ||
	       (is_body(f->phase) && !(f->flags & STREAM_CHUNKED));
}

static __always_inline bool is_rest(u8 phase)
{
	return phase == PHASE_IDLE || phase == PHASE_UNTIL_CLOSE || phase == PHASE_LOST;
}

#endif
