package datapath

// mcpu v3 is for atomics that return a value (kernel 5.12).
//go:generate go tool bpf2go -tags linux -target bpfel -type endpoint -type near -type probes -type traffic -type flood -type tally -type event -type flow -type flow_state -type reason -type slot guard bpf/guard.c -- -O2 -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
