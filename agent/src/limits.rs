//! Every limit of the agent's user-space half, with its unit and its reason. Limits of the kernel side
//! are in `agent_ebpf::limits`.
