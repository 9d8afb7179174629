package berth

import (
	"encoding/binary"
	"fmt"
	"io"
)

// maxName bounds a name so that it fits a path element, a label and a table.
const maxName = 63

// ValidName reports whether s is a name: [a-z0-9][a-z0-9._-]{0,62}.
func ValidName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

func errName(name string) error {
	return Errorf(CodeInvalidArgument, "%q is not a name", name).
		WithHint("use 1 to 63 of a-z 0-9 . _ - and begin with a letter or a digit")
}

// GenerateName makes a name of two words, like "calm-heron", from a source of
// randomness. Names are drawn, not counted: the caller draws again on a clash.
func GenerateName(random io.Reader) (string, error) {
	var b [4]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", fmt.Errorf("make a name: %w", err)
	}
	n := binary.LittleEndian.Uint32(b[:])
	first := nameFirst[n%uint32(len(nameFirst))]
	n /= uint32(len(nameFirst))
	return first + "-" + nameSecond[n%uint32(len(nameSecond))], nil
}

var nameFirst = [...]string{
	"amber", "ample", "basic", "bold", "brave", "breezy", "bright", "brisk", "broad", "calm", "civil", "clean", "clear",
	"clever", "cosy", "crisp", "deep", "deft", "early", "eager", "easy", "even", "fair", "fast", "fine", "firm", "fleet",
	"fond", "free", "fresh", "gentle", "glad", "golden", "good", "grand", "green", "happy", "hardy", "high", "honest",
	"humble", "jolly", "keen", "kind", "large", "lively", "long", "loyal", "lucid", "lucky", "mellow", "merry", "mild",
	"neat", "nimble", "noble", "olive", "open", "plain", "prime", "proud", "quick", "quiet", "rapid", "ready", "rich",
	"robust", "round", "royal", "sharp", "silent", "silver", "smart", "smooth", "snug", "solid", "sound", "spry", "steady",
	"still", "stout", "sunny", "swift", "tall", "tame", "tidy", "trim", "true", "vast", "vivid", "warm", "whole", "wide",
	"wild", "wise", "witty", "young", "zesty",
}

var nameSecond = [...]string{
	"anchor", "atoll", "barge", "basin", "bay", "beacon", "boom", "bow", "brig", "buoy", "canal", "canoe", "cape", "cargo",
	"clipper", "coast", "cockle", "compass", "coral", "cove", "crane", "current", "cutter", "deck", "delta", "dinghy", "dock",
	"dory", "drift", "eddy", "egret", "estuary", "ferry", "fjord", "fleet", "float", "foam", "galley", "gannet", "gull",
	"gulf", "harbor", "haven", "hawser", "helm", "heron", "hull", "inlet", "island", "jetty", "kayak", "keel", "kelp", "ketch",
	"lagoon", "lantern", "launch", "ledger", "lock", "lugger", "mast", "mole", "moor", "oar", "osprey", "otter", "packet",
	"petrel", "pier", "pilot", "pinnace", "plover", "port", "prow", "punt", "quay", "raft", "reef", "rigger", "rudder", "sail",
	"schooner", "seal", "shoal", "shore", "skiff", "sloop", "sound", "spar", "spray", "strait", "tern", "tide", "tiller",
	"trawler", "tug", "wake", "wharf", "yawl",
}
