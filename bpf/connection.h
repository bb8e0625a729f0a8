/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What is kept for each connection of an engine, beside its socket. */
#ifndef SITS_CONNECTION_H
#define SITS_CONNECTION_H

#include "http.h"
#include "maps.h"

/* a socket's connection: the stream under way and where its bytes stand */
struct connection {
	struct stream stream;
	struct follow follow;
	u32 out_next; /* sequence number of the next byte not yet followed */
	u32 in_next;
	u32 out_known;
	u32 in_known;
	u32 generation; /* when its target was last looked up */
	u32 pad;
};

/* lives and dies with the socket */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection);
} connections SEC(".maps");

#endif
