package redistest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// GuardClock fails the test for every place in a test file below root that
// moves a miniredis clock by itself: SetTime moves TIME and FastForward
// lifetimes, and a test that moves one without the other passes or fails for the
// wrong reason. fakeredis moves both.
//
// It reads names, not types: FastForward is refused anywhere; SetTime when its
// receiver is a call of Mini or a variable set to one, and anywhere in a file
// that imports miniredis.
func GuardClock(t testing.TB, root string) {
	t.Helper()
	found, err := clockMisuse(root)
	must(t, err)
	for _, place := range found {
		t.Errorf("%s moves one clock of two; use the Advance or SetTime of fakeredis", place)
	}
}

// clockMisuse lists "file:line: name" of what GuardClock refuses.
func clockMisuse(root string) ([]string, error) {
	var found []string
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			return err
		}
		if d.IsDir() {
			hidden := strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_")
			if path != root && (hidden || d.Name() == "testdata" || d.Name() == "vendor") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		fset := token.NewFileSet()
		file, _ := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if file == nil {
			return fmt.Errorf("%s can't be read", path)
		}
		for _, sel := range misuses(file) {
			found = append(found, fmt.Sprintf("%s:%d: %s", path, fset.Position(sel.Sel.Pos()).Line, sel.Sel.Name))
		}
		return nil
	})
	if err == nil && files == 0 {
		err = fmt.Errorf("no test files below %s", root)
	}
	return found, err
}

func misuses(file *ast.File) []*ast.SelectorExpr {
	anySetTime := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
		return strings.HasPrefix(strings.Trim(i.Path.Value, `"`), "github.com/alicebob/miniredis")
	})
	minis := miniVariables(file)
	var found []*ast.SelectorExpr
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		switch sel.Sel.Name {
		case "FastForward":
			found = append(found, sel)
		case "SetTime":
			if anySetTime || isMini(sel.X) || minis[lastName(sel.X)] {
				found = append(found, sel)
			}
		}
		return true
	})
	return found
}

// miniVariables gives the names of variables and fields that are set to the
// result of a method named Mini.
func miniVariables(file *ast.File) map[string]bool {
	names := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, value := range n.Rhs {
				if isMini(value) && i < len(n.Lhs) {
					names[lastName(n.Lhs[i])] = true
				}
			}
		case *ast.ValueSpec:
			for i, value := range n.Values {
				if isMini(value) && i < len(n.Names) {
					names[n.Names[i].Name] = true
				}
			}
		case *ast.KeyValueExpr:
			if isMini(n.Value) {
				names[lastName(n.Key)] = true
			}
		}
		return true
	})
	delete(names, "")
	return names
}

// isMini says whether e is a call x.Mini().
func isMini(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && lastName(call.Fun) == "Mini"
}

// lastName gives the name in x or a.b.x.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
