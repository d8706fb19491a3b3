-- Walks the items of a run and answers them as if they had come one after
-- another. A strategy's file gives it read, wait, reset, charge, refund, mend.
--
-- An item in ARGV:
--   op      a allow, u allow up to, p peek, r refund, x reset
--   n       units, 0 to 2^53+2; 0 for p and x
--   count   equal calls in this item, 1 or more; 1 for p, r and x;
--           n*count is at most 2^53 where count is above 1
--   limits  number of limits that follow, or 0: those of the item before
--   then for each limit: units, width in microseconds (of the window, or of a
--   slot), keys (how many KEYS it owns; the same number for each strategy and policy)
--
-- The reply is one flat array of integers. For each item:
--   units granted (given back, for r) by its calls together
--   for each limit: units counted now, microseconds until it lets a call like
--     this pass (0: at once, or never), microseconds until it counts nothing
--   and, if there are several limits: microseconds until the smallest limit's
--     whole units fit under all of them

local reply, at, key = {}, 3, 1
local limits

local function add(x)
	reply[#reply + 1] = x
end

local function parse(count)
	limits = {}
	for i = 1, count do
		limits[i] = {
			units = tonumber(ARGV[at]),
			width = tonumber(ARGV[at + 1]),
			keys = tonumber(ARGV[at + 2]),
		}
		at = at + 3
	end
end

local function room()
	local left = math.huge
	for _, limit in ipairs(limits) do
		left = min(left, limit.units - limit.used)
	end
	return max(0, left)
end

-- What of n units a call, count times over, may be charged now.
local function grant(op, n, count)
	local left = room()
	if op == 'u' then
		return min(left, n * count)
	end
	local calls = min(count, floor(left / n))
	if calls * n > left then
		calls = calls - 1
	end
	return calls * n
end

local function give_back(n)
	local given = 0
	for _, limit in ipairs(limits) do
		given = max(given, refund(limit, n))
	end
	return given
end

local function state(limit, n)
	add(limit.used)
	local ready = 0
	if n <= limit.units then
		ready = wait(limit, n)
	end
	add(ready)
	add(reset(limit))
end

local function whole()
	local units, longest = math.huge, 0
	for _, limit in ipairs(limits) do
		units = min(units, limit.units)
	end
	for _, limit in ipairs(limits) do
		longest = max(longest, wait(limit, units))
	end
	return longest
end

-- The cost of the call whose waiting time the answer tells.
local function next_cost(op, n)
	if op == 'a' then
		return n
	end
	return 1
end

local function place()
	for _, limit in ipairs(limits) do
		limit.at = key
		key = key + limit.keys
		read(limit)
	end
end

local function forget(from)
	redis.call('DEL', unpack(KEYS, from, key - 1))
	for _, limit in ipairs(limits) do
		read(limit)
	end
end

local function run(index)
	local op, n, count = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
	local own = tonumber(ARGV[at + 3])
	at = at + 4
	if own > 0 then
		parse(own)
	end
	local from, granted = key, 0
	place()
	if op == 'a' or op == 'u' then
		granted = grant(op, n, count)
		for _, limit in ipairs(limits) do
			if granted > 0 then
				charge(limit, granted, ARGV[2] .. '.' .. text(index))
			else
				mend(limit)
			end
		end
	elseif op == 'r' then
		granted = give_back(n)
	elseif op == 'x' then
		forget(from)
	end
	add(granted)
	local cost = next_cost(op, n)
	for _, limit in ipairs(limits) do
		state(limit, cost)
	end
	if #limits > 1 then
		add(whole())
	end
end

local index = 0
while at <= #ARGV do
	index = index + 1
	run(index)
end
return reply
