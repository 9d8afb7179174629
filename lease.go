package berth

import "time"

// Lease is a named hold with a time-to-live, owned by a principal. It keeps a
// host awake or a claim alive. A lease alone fences nothing: every write that
// it protects checks Epoch in the same statement.
type Lease struct {
	Name      string    `json:"name"`
	Principal string    `json:"principal"` // who holds it
	Label     string    `json:"label,omitempty"`
	Epoch     int64     `json:"epoch"` // +1 whenever the lease changes hands
	ExpiresAt time.Time `json:"expires_at"`
}

// MaxLeaseTTL bounds a lease: a holder that cannot renew within an hour is gone.
const MaxLeaseTTL = time.Hour
