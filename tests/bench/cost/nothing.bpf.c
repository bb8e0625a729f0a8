// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Programs that do nothing: what the kernel's run counter says of them is its own cost. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

SEC("tp_btf/sched_switch")
int nothing_at_switch(void *ctx)
{
	return 0;
}

SEC("tp_btf/sched_wakeup")
int nothing_at_wakeup(void *ctx)
{
	return 0;
}
