package berth

// GuestProtocol is the version of the guest protocol that this build speaks.
// It rises only when an older peer could misread a message; what is merely new
// is a named feature.
const GuestProtocol = 1

// version and build are set by the linker (see Makefile) and never change after.
var (
	version = "0.1.0-dev"
	build   = "unknown"
)

// Version is the version of this build, and Build its commit or "unknown".
func Version() string { return version }

// Build is the commit of this build, or "unknown".
func Build() string { return build }
