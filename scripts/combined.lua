-- Limits of several strategies, each counted as its own file says. A limit has its strategy's
-- number among kinds, see script.go, after its rate.

local grid = false
fields = 5

local function kind(limit)
	return kinds[limit.kind + 0]
end

local function read(limit)
	kind(limit).read(limit)
end

local function wait(limit, n)
	return kind(limit).wait(limit, n)
end

local function charge(limit, n, id, when)
	return kind(limit).charge(limit, n, id, when)
end

local function mend(limit)
	kind(limit).mend(limit)
end
