package berth

// Identity names one process for ever: a PID alone is reused within
// microseconds in a container. A process is the same one only if boot id, PID
// and start time all agree.
type Identity struct {
	BootID    string `json:"boot_id"`    // /proc/sys/kernel/random/boot_id
	PID       int    `json:"pid"`        // in the PID namespace of berth
	StartTime uint64 `json:"start_time"` // field 22 of /proc/PID/stat: clock ticks since boot
	// PidfdInode is the inode of the process's pidfd, unique for one boot on
	// kernels from 6.9 on; 0 where it is not known.
	PidfdInode uint64 `json:"pidfd_inode,omitempty"`
}
