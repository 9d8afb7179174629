package session

import (
	"reflect"
	"testing"
	"time"

	"berth"
)

// flip gives another value of the same type.
func flip(t *testing.T, v reflect.Value) {
	t.Helper()
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = x.Add(time.Hour)
	case *[]string:
		*x = append(append([]string{}, *x...), "more")
	case **berth.Exit:
		*x = &berth.Exit{Code: 9}
	case **berth.Agent:
		*x = &berth.Agent{State: berth.AgentBlocked}
	default:
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Uint64:
			v.SetUint(v.Uint() + 1)
		case reflect.Bool:
			v.SetBool(!v.Bool())
		default:
			t.Fatalf("a field of kind %s: teach this test", v.Kind())
		}
	}
}

// A field of a session that differ forgets would never reach the store.
func TestDifferForgetsNoField(t *testing.T) {
	free := map[string]bool{"Revision": true, "Offsets.Start": true, "Offsets.End": true, "Log.KeptFrom": true, "Log.Bytes": true}
	var walk func(prefix string, index []int, typ reflect.Type)
	walk = func(prefix string, index []int, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			at := append(append([]int{}, index...), i)
			if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[time.Time]() {
				walk(prefix+f.Name+".", at, f.Type)
				continue
			}
			var a, b berth.Session
			flip(t, reflect.ValueOf(&b).Elem().FieldByIndex(at))
			if got := differ(a, b) == same; got != free[prefix+f.Name] {
				t.Errorf("a change of %s is the same: %v", prefix+f.Name, got)
			}
		}
	}
	walk("", nil, reflect.TypeFor[berth.Session]())
	exit := reflect.TypeFor[berth.Exit]()
	for i := range exit.NumField() {
		a, b := berth.Session{Exit: &berth.Exit{}}, berth.Session{Exit: &berth.Exit{}}
		flip(t, reflect.ValueOf(b.Exit).Elem().Field(i))
		if differ(a, b) != hard {
			t.Errorf("a change of Exit.%s is not seen", exit.Field(i).Name)
		}
	}
}
