/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What crosses between the kernel and user space. bpf/layout.py has the same in Python; a test
 * compares the two through BTF. A change here needs a new LAYOUT_VERSION there. */
#ifndef SITS_LAYOUT_H
#define SITS_LAYOUT_H

#include "kernel.h"

/* 8 buckets an octave from 2^10 ns to 2^36 ns, one below, one above: see bpf/histogram.py */
#define HIST_FIRST_BIT 10
#define HIST_LAST_BIT 36
#define HIST_SLOTS (2 + (HIST_LAST_BIT - HIST_FIRST_BIT) * 8)

struct histogram {
	u64 sum_ns;
	u64 slots[HIST_SLOTS];
	u64 pad[5];
};

enum target_kind {
	TARGET_ENGINE = 1,
	TARGET_NEIGHBOUR = 2,
};

#define NAME_BYTES 64

/* one target, written by the agent; its name keeps its row, and so its counters, when the agent
 * starts again */
struct target {
	u64 ttft_slo_ns;
	u64 gap_slo_ns;
	u64 wait_edge_ns;
	u64 first_chunk_deadline_ns;
	u64 kind;
	char name[NAME_BYTES];
};

/* what one target did on one CPU; every field only grows. The scheduler's cache line is
 * its own, so that the streams' writes do not slow it. */
struct counters {
	u64 run_ns;
	u64 wait_ns;
	u64 waits;
	u64 wait_self_ns;
	u64 wait_other_ns;
	u64 waits_over;
	u64 involuntary;
	u64 edge_ns;
	u64 requests;
	u64 responses;
	u64 first_chunks;
	u64 ttft_sum_ns;
	u64 ttft_over;
	u64 chunks;
	u64 gaps;
	u64 gap_sum_ns;
	u64 gaps_over;
	u64 body_bytes;
	u64 ends_complete;
	u64 ends_early;
	u64 ends_unstarted;
	u64 retransmits;
	u64 errors;
	u64 events;
	/* the network's and the socket's side */
	u64 loss_probes;
	u64 synack_retransmits;
	u64 resets_sent;
	u64 resets_received;
	u64 receive_queue_full; /* the window a client may send into was closed */
	u64 writes;
	u64 writes_stalled; /* bytes were still unsent when the write returned */
	u64 write_again; /* EAGAIN */
	u64 blocked_ns; /* with unsent bytes, all streams together */
	u64 blocked_begun;
	u64 blocked_ended; /* begun less ended: streams with unsent bytes now */
	u64 reads;
	u64 read_wait_ns; /* request in to its first read by the engine */
	u64 deadlines_missed; /* no first chunk within the deadline */
	u64 role_frames;
	u64 writes_held; /* of the stalled: by a client's window with no room left */
	u64 opaque; /* turns on TLS or HTTP/2: in no other counter of streams */
	u64 gaps_unsent; /* of those over: for at least half of the gap bytes could not leave */
	u64 pad[6];
};

/* what our own limits cost, one line a CPU; every field only grows */
struct health {
	u64 event_drops;
	u64 edge_drops;
	u64 storage_full;
	u64 lost_streams;
	u64 culprits_full;
	u64 roles_full; /* a thread's name found no row */
	u64 pad[2];
};

#define COMM_BYTES 16
#define MAX_ROLES 512

/* threads of one target that bear one name */
struct role_key {
	u32 slot;
	char comm[COMM_BYTES];
};

/* what they did on one CPU */
struct role {
	u64 run_ns;
	u64 wait_ns;
	u64 waits;
	u64 wait_other_ns;
	u64 involuntary;
	u64 pad[3];
};

/* who held the CPU while a target's task waited */
struct culprit_key {
	u64 cgroup;
	u32 slot;
	u32 pad;
};

struct culprit {
	u64 wait_ns;
	u64 waits;
	u64 worst_ns;
	char comm[16]; /* of the longest wait */
};

enum event_kind {
	EVENT_START = 1,
	EVENT_FIRST = 2,
	EVENT_END = 3,
};

enum end_reason {
	END_COMPLETE = 1,
	END_SERVER_CLOSED = 2,
	END_CLIENT_RESET = 3,
	END_CLOSED = 4,
	END_LOST = 5,
};

enum stream_flags {
	STREAM_CHUNKED = 1, /* transfer-encoding: chunked */
	STREAM_EVENTS = 2, /* content-type: text/event-stream */
	STREAM_LENGTH = 4, /* content-length was given */
	STREAM_OPAQUE = 8, /* TLS or HTTP/2: a turn on the connection, its chunks are bursts */
};

/* one stream, as far as it has come */
struct stream {
	u64 connection; /* socket cookie */
	u64 request_ns;
	u64 head_ns;
	u64 first_ns;
	u64 last_ns;
	u64 gap_sum_ns;
	u64 gap_max_ns;
	u64 body_bytes;
	u64 read_ns; /* the engine's first read after the request came in */
	u64 write_ns; /* its first bytes leave */
	u64 last_write_ns; /* its last write but for that which ended the stream */
	u64 write_gap_max_ns;
	u64 blocked_ns; /* with unsent bytes */
	u32 busy_ms; /* TCP_INFO's: data in flight or waiting to be sent, */
	u32 rwnd_limited_ms; /* held by the client's window, */
	u32 sndbuf_limited_ms; /* by the send buffer */
	u32 writes_stalled;
	u32 write_again;
	u32 number; /* n-th stream of its connection, from 1 */
	u32 slot;
	u32 chunks;
	u32 gaps_over;
	u32 retransmits;
	u32 events; /* server-sent events in the data chunks */
	u32 role_frames; /* frames before the first token that hold none */
	u16 status;
	u16 flags;
	u16 local_port;
	u16 remote_port;
	u32 family;
	u32 remote_ip[4];
	u32 pad;
};

/* of a request's head, for its path and its traceparent, which clients put behind much else */
#define HEAD_BYTES 1024
/* a start that has no more takes this much room in the ring */
#define SHORT_HEAD_BYTES 256

struct event {
	u64 at_ns;
	u32 kind;
	u32 reason;
	struct stream stream;
};

/* its record ends somewhere after head_len bytes of the head */
struct start_event {
	struct event event;
	u32 head_len;
	u32 pad;
	u8 head[HEAD_BYTES];
};

enum edge_kind {
	EDGE_WAIT = 1,
	EDGE_GAP = 2,
	EDGE_TTFT = 3,
};

/* a threshold was crossed: wakes the controller at once */
struct edge {
	u64 at_ns;
	u64 value_ns;
	u32 slot;
	u32 kind;
};

#endif
