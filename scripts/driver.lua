-- Walks the items of a run and answers them as if they had come one after
-- another. A strategy's file gives it four functions of a limit, which is a
-- table with units, width, keys (from ARGV) and at (index of its first key):
--
--   read(limit)           sets limit.used, the units counted now
--   wait(limit, n)        microseconds until n units fit, 0 if they do now; n is
--                         at most limit.units; n = limit.units: until nothing counts
--   charge(limit, n, id)  counts n more units; n < 0 gives back, newest first,
--                         never more than limit.used; id tells the run's items apart
--   mend(limit)           after a refusal: gives a key that lost its lifetime by
--                         somebody's hand a new one; a first charge sets it anyway
--
-- An item in ARGV:
--   op      a allow, u allow up to, p peek, r refund, x reset; after a and u
--           the number of equal calls if they are several: a17
--   n       units, 0 to 2^53+2; 0 for p and x; times the calls at most 2^53 if
--           they are several
--   limits  number of limits that follow, or 0: those of the item before
--   then for each limit: units, width in microseconds (of the window, or of a
--   slot), keys (how many of KEYS are its own)
--
-- The reply is one flat array of integers. For each item:
--   units granted (given back, for r) to its calls together
--   for each limit: units counted now, microseconds until it lets a call like
--     this pass (0: at once, or never), microseconds until it counts nothing
--   and, if there are several limits: microseconds until the smallest limit's
--     whole units fit under all of them

while ARGV[at] do
	local op, n, own, calls = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2] + 0, 1
	at, index = at + 3, index + 1
	if #op > 1 then
		calls = sub(op, 2) + 0
		op = sub(op, 1, 1)
	end
	if own > 0 then
		limits, total = {}, own
		for i = 1, own do
			limits[i] = {
				units = ARGV[at] + 0, width = ARGV[at + 1] + 0, keys = ARGV[at + 2] + 0,
				at = 0, used = 0, slot = 0,
			}
			at = at + 3
		end
	end
	if op == 'x' then
		local last = key - 1
		for i = 1, total do
			last = last + limits[i].keys
		end
		call('DEL', unpack(KEYS, key, last))
	end

	-- Read all before anything is decided.
	local room, smallest = limits[1].units, limits[1].units
	for i = 1, total do
		local limit = limits[i]
		limit.at = key
		key = key + limit.keys
		read(limit)
		local left = limit.units - limit.used
		if left < room then
			room = left
		end
		if limit.units < smallest then
			smallest = limit.units
		end
	end
	if room < 0 then
		room = 0
	end

	-- Decide for all limits together, then charge all of them.
	local granted, cost = 0, 1
	if op == 'a' then
		cost = n
		if n <= room then
			granted = n
			if calls > 1 then
				granted = math.min(calls, floor(room / n)) * n
			end
		end
	elseif op == 'u' then
		granted = math.min(room, n * calls)
	end
	if granted > 0 then
		for i = 1, total do
			charge(limits[i], granted, index)
		end
	elseif op == 'r' then
		for i = 1, total do
			local back = math.min(n, limits[i].used)
			if back > 0 then
				charge(limits[i], -back, index)
				granted = math.max(granted, back)
			end
		end
	elseif op == 'a' or op == 'u' then
		for i = 1, total do
			mend(limits[i])
		end
	end

	reply[size + 1] = granted
	size = size + 1
	local whole = 0
	for i = 1, total do
		local limit = limits[i]
		local used, units = limit.used, limit.units
		reply[size + 1] = used
		reply[size + 2] = cost > units - used and cost <= units and wait(limit, cost) or 0
		reply[size + 3] = used > 0 and wait(limit, units) or 0
		size = size + 3
		if smallest > units - used then
			whole = math.max(whole, wait(limit, smallest))
		end
	end
	if total > 1 then
		size = size + 1
		reply[size] = whole
	end
end
return reply
