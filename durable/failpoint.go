package durable

// FailpointNames are the points at which a program built with the tag
// "failpoints" can be made to kill itself: BERTH_FAILPOINT=NAME, or NAME:N for
// the N-th time that it comes there. Each stands between two steps of which a
// crash may come in between. A test proves that this list and the calls agree.
var FailpointNames = []string{
	"before_begin", "after_begin", // a new record with its first effects
	"before_commit", "after_commit", // a change, its effects and its events
	"before_start", "after_start", // an effect is marked started; then it is performed
	"before_own", "after_own", // ids of things about to be created
	"after_perform",                     // the effect is done, its answer is not committed
	"before_takeover", "after_takeover", // of a dead process's record
	"after_inspect", "after_reconcile", // of a record that was taken over
	"after_post", "before_settle", "after_settle", // messages between daemons
	"before_archive", "after_archive",
}

// FailpointVar is the variable that names the point.
const FailpointVar = "BERTH_FAILPOINT"
