package berth

// DriverKind says how a host is reached.
type DriverKind string

// The driver kinds. Only DriverLocal is built so far.
const (
	DriverLocal      DriverKind = "local"
	DriverDocker     DriverKind = "docker"
	DriverVM         DriverKind = "vm"
	DriverSSH        DriverKind = "ssh"
	DriverWSL        DriverKind = "wsl"
	DriverKubernetes DriverKind = "kubernetes"
	DriverImp        DriverKind = "imp"
)

// Valid reports whether the kind is one of the above.
func (k DriverKind) Valid() bool {
	switch k {
	case DriverLocal, DriverDocker, DriverVM, DriverSSH, DriverWSL, DriverKubernetes, DriverImp:
		return true
	}
	return false
}

// LocalHost is the name of the machine that the daemon itself runs on.
const LocalHost = "local"
