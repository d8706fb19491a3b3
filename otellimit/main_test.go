package otellimit_test

import (
	"bytes"
	"context"
	"sort"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/goleak"

	"github.com/rationgo/ration/otellimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// hidden is the subject of the tests' calls: it must be in nothing that is exported.
const hidden = "alice-7f3a"

// scraper reads metrics as a Prometheus server does.
type scraper struct {
	t        *testing.T
	registry *prometheus.Registry
	provider *metric.MeterProvider
}

func newScraper(t *testing.T) *scraper {
	t.Helper()
	registry := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutTargetInfo(), otelprom.WithoutScopeInfo())
	require.NoError(t, err)
	provider := metric.NewMeterProvider(metric.WithReader(exporter))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	return &scraper{t, registry, provider}
}

func (s *scraper) observer() *otellimit.Observer {
	s.t.Helper()
	o, err := otellimit.NewObserver(otellimit.WithMeterProvider(s.provider))
	require.NoError(s.t, err)
	return o
}

// text is what a scrape gives.
func (s *scraper) text() string {
	s.t.Helper()
	families, err := s.registry.Gather()
	require.NoError(s.t, err)
	var b bytes.Buffer
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&b, f)
		require.NoError(s.t, err)
	}
	require.NotContains(s.t, b.String(), hidden)
	return b.String()
}

// lines are the series whose names begin with one of some prefixes, sorted.
func (s *scraper) lines(prefixes ...string) string {
	s.t.Helper()
	var found []string
	for line := range strings.Lines(s.text()) {
		for _, p := range prefixes {
			if strings.HasPrefix(line, p) {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	sort.Strings(found)
	return strings.Join(found, "\n")
}

// trimmed is a list of lines without its indentation.
func trimmed(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}
