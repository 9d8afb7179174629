package server

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth"
)

// metrics are the server's, in a registry of their own: two servers in one
// process (a test) must not meet in a global one.
type metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	refused   prometheus.Counter
	panics    prometheus.Counter
	viewers   prometheus.Gauge
	toViewers prometheus.Counter
	toProgram prometheus.Counter
	followers prometheus.Gauge
	cut       prometheus.Counter
}

func newMetrics(counts func() berth.SessionCounts) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_http_requests_total", Help: "Requests answered, by route, method and status.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_http_request_duration_seconds", Help: "Time to answer a request, by route; attaches and event streams are left out.",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 60},
		}, []string{"route"}),
		refused:   counter("berth_http_refused_total", "Requests refused at the door: wrong user, host, origin or token."),
		panics:    counter("berth_http_panics_total", "Handlers that failed in a way nobody foresaw."),
		viewers:   gauge("berth_viewers", "Viewers attached through this daemon."),
		toViewers: counter("berth_attach_sent_bytes_total", "Bytes of frames sent to viewers."),
		toProgram: counter("berth_attach_received_bytes_total", "Bytes of frames received from viewers."),
		followers: gauge("berth_event_followers", "Open event streams."),
		cut:       counter("berth_event_followers_cut_total", "Event streams cut because their reader was too slow."),
	}
	m.registry.MustRegister(m.requests, m.duration, m.refused, m.panics, m.viewers, m.toViewers, m.toProgram,
		m.followers, m.cut, sessionCollector{counts}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_build_info", Help: "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": berth.Version(), "build": berth.Build()},
	}, func() float64 { return 1 }))
	return m
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// request counts an answer. The pattern is the route, so that names of sessions
// and made-up paths never become labels; methods are bounded for the same reason.
func (m *metrics) request(pattern, method string, status int, took time.Duration) {
	_, route, found := strings.Cut(pattern, " ")
	if !found {
		route = pattern
	}
	if route == "" {
		route = "unknown"
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	if route != routeAttach && route != routeEvents {
		m.duration.WithLabelValues(route).Observe(took.Seconds())
	}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{DisableCompression: true})
}

// sessionCollector counts sessions when it is asked.
type sessionCollector struct {
	counts func() berth.SessionCounts
}

func sessionsDesc() *prometheus.Desc {
	return prometheus.NewDesc("berth_sessions", "Sessions by state.", []string{"state"}, nil)
}

// Describe implements prometheus.Collector.
func (c sessionCollector) Describe(ch chan<- *prometheus.Desc) { ch <- sessionsDesc() }

// Collect implements prometheus.Collector.
func (c sessionCollector) Collect(ch chan<- prometheus.Metric) {
	n := c.counts()
	for state, count := range map[berth.SessionState]int{
		berth.SessionRunning: n.Running, berth.SessionExited: n.Exited,
		berth.SessionLost: n.Lost, berth.SessionUnknown: n.Unknown,
	} {
		ch <- prometheus.MustNewConstMetric(sessionsDesc(), prometheus.GaugeValue, float64(count), string(state))
	}
}
