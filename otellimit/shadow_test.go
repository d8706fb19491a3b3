package otellimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/otellimit"
	"github.com/rationgo/ration/rationtest"
)

// A page that peeks isn't bitten by the limit: its peeks can be told apart.
func TestShadowTellsPeeksApart(t *testing.T) {
	reader := metric.NewManualReader()
	o, err := otellimit.NewObserver(otellimit.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))
	require.NoError(t, err)
	l, err := ration.NewShadow(rationtest.NewFake(t, rationtest.Always(rationtest.Refused(time.Second))), ration.WithObserver(o))
	require.NoError(t, err)
	_, err = l.Allow(t.Context(), "u")
	require.NoError(t, err)
	for range 9 {
		_, err := l.Peek(t.Context(), "u")
		require.NoError(t, err)
	}
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	for _, m := range rm.ScopeMetrics[0].Metrics {
		if m.Name == "ration.shadow.let_through" {
			points := m.Data.(metricdata.Sum[int64]).DataPoints
			t.Log(points)
			for _, p := range points {
				_, has := p.Attributes.Value("ration.operation")
				require.True(t, has || p.Value == 1, "%d counted, of which 9 peeks that can't be told apart", p.Value)
			}
		}
	}
}
