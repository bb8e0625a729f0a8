// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* A network that loses packets: of those with data from one port, a share never reaches the client.
 * Attached to the client's own cgroup, behind the IP layer and before TCP: the sender sees what it
 * sees when a wire loses them. Stands in for netem where the kernel has none. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

const volatile __u32 from_port = 0;
const volatile __u32 lost_per_mille = 0;

#define PASS 1
#define DROP 0
#define TCP 6

SEC("cgroup_skb/ingress")
int lose(struct __sk_buff *skb)
{
	__u8 first, protocol, offset;
	__u16 port;
	__u32 ip_len;

	if (bpf_skb_load_bytes(skb, 0, &first, 1) || first >> 4 != 4)
		return PASS;
	ip_len = (first & 15) * 4;
	if (bpf_skb_load_bytes(skb, 9, &protocol, 1) || protocol != TCP)
		return PASS;
	if (bpf_skb_load_bytes(skb, ip_len, &port, 2) || bpf_ntohs(port) != from_port)
		return PASS;
	if (bpf_skb_load_bytes(skb, ip_len + 12, &offset, 1) || skb->len <= ip_len + (offset >> 4) * 4)
		return PASS;
	return bpf_get_prandom_u32() % 1000 < lost_per_mille ? DROP : PASS;
}
