// SPDX-License-Identifier: Apache-2.0
//
// The guard of the sandboxes' network: one program for each hook. bridge.h has the program of
// the bridge, port.h those of a sandbox's port.

#include "bridge.h"
#include "port.h"

// Types that no map names but the Go side reads need a mention to be in the BTF.
const struct event *event_type __attribute__((unused));
const enum reason *reason_type __attribute__((unused));
const enum slot *slot_type __attribute__((unused));

char _license[] SEC("license") = "Apache-2.0";
