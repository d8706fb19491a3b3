-- Walks the items of a run and answers them as if they had come one after
-- another. A strategy's file gives it four functions of a limit, which is a
-- table with units, width, keys, perhaps rate (from ARGV) and at (index of its first key), and
-- grid: true if read sets limit.slot, and what is charged counts for that slot of
-- the grid [slot*width, (slot+1)*width), the clock's own or a later one.
--
--   read(limit)     sets limit.used, the units counted now
--   wait(limit, n)  microseconds until n units fit, 0 if they do now; n is
--                   at most limit.units; n = limit.units: until nothing counts
--   charge(limit, n, id, when)
--                   counts n more units, as used at the time when, nil for now; id
--                   tells the run's items apart. n < 0 gives back, at most limit.held or
--                   else limit.used (but for a reservation), and returns how many: when = nil newest first,
--                   'oldest' oldest first, a time: only such as count as used then
--                   A token bucket takes a time, too, for the end of a reservation
--   mend(limit)     after a refusal: gives a key that lost its lifetime by
--                   somebody's hand a new one; a first charge sets it anyway
--
-- Where a file sets choose(op, n) that decides about a, u, p and r in place of "all limits must hold": it
-- charges, and returns the units granted. What it then leaves in answer, two numbers, is the
-- item's last; the second of two limits is asked about a cost beyond the whole of the first.
--
-- An item in ARGV:
--   op      a allow, u allow up to, p peek, r refund, x reset; after a and u
--           the number of equal calls if they are several: a17
--           l<hold>/<share> lease: units to use within some term. It's at most
--           hold microseconds, and ends before any limit's slot of the grid does.
--           They count as used at its end. Granted are n, or as many whole
--           times as share goes into what fits
--           b<end> give back units of a lease that ended (or ends) then
--           o shed: a refund, oldest first, since the newest may be leased
--           w<longest> reserve: n units that fit within so many microseconds at
--           the longest count now, to be used when they fit. One limit, of a token bucket
--           c<time> cancel a reservation that fits from then on, unless it's over or others have reserved behind it
--   n       units, 0 to 2^53+2; 0 for p and x; times the calls at most 2^53 if
--           they are several
--   limits  number of limits that follow, or 0: those of the item before
--   then for each limit: units, width in microseconds (of the window, or of a
--   slot), keys (how many of KEYS are its own), and as many more as fields says
--
-- The reply is one flat array of integers. For each item:
--   units granted (given back, for r, b, o and c: the most by any limit) to its calls
--     together
--   for each limit: units counted now, microseconds until it lets a call like
--     this pass (0: at once, or never; of a reservation: until its turn), microseconds until it counts nothing
--     and, where fields is more than 3, by how much that is rounded up, in parts of which rate are one
--   and, if there are several limits: microseconds until the smallest limit's
--     whole units fit under all of them
--   and, for l: the term in microseconds, and the time it ends; 0 if nothing was granted
--   and, for w: the time it is now; 0 if nothing was granted

while ARGV[at] do
	local op, n, own, calls = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2] + 0, 1
	local term, share, when, turn
	at, index = at + 3, index + 1
	if #op > 1 then
		local rest = sub(op, 2)
		op = sub(op, 1, 1)
		if op == 'l' then
			local hold, part = string.match(rest, '^(%d+)/(%d+)$')
			term = hold + 0
			share = part + 0
		elseif op == 'b' or op == 'c' then
			when = rest + 0
		elseif op == 'w' then
			term = rest + 0
		else
			calls = rest + 0
		end
	end
	if own > 0 then
		limits, total = {}, own
		for i = 1, own do
			limits[i] = {
				units = ARGV[at] + 0, width = ARGV[at + 1] + 0, keys = ARGV[at + 2] + 0,
				at = 0, used = 0, slot = 0,
			}
			if fields > 3 then
				limits[i].rate = ARGV[at + 3] + 0
				limits[i].kind = ARGV[at + 4]
			end
			at = at + fields
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
	if choose and op ~= 'x' then
		cost = op == 'a' and n or 1
		granted = choose(op, n)
	elseif op == 'a' then
		cost = n
		if n <= room then
			granted = n
			if calls > 1 then
				granted = math.min(calls, floor(room / n)) * n
			end
		end
	elseif op == 'u' then
		granted = math.min(room, n * calls)
	elseif op == 'l' then
		if grid then
			for i = 1, total do
				term = math.min(term, (limits[i].slot + 1) * limits[i].width - 1 - now)
			end
		end
		if term > 0 then
			granted = math.min(n, floor(room / share))
			when = now + term
		end
	elseif op == 'w' then
		local limit = limits[1]
		cost = n
		if n <= limit.units and limit.used <= 9007199254740992 - n then
			turn = wait(limit, n)
			if turn <= term then
				granted = n
			end
		end
	end
	if choose then
		when = nil
	elseif granted > 0 then
		for i = 1, total do
			charge(limits[i], granted, index, when)
		end
	elseif op == 'a' or op == 'u' or op == 'l' or op == 'w' then
		for i = 1, total do
			mend(limits[i])
		end
	elseif n > 0 then -- r, b, o, c: each limit gives back what it has
		if op == 'o' then
			when = 'oldest'
		end
		for i = 1, total do
			local back = op == 'c' and n or math.min(n, limits[i].held or limits[i].used)
			if back > 0 then
				granted = math.max(granted, charge(limits[i], -back, index, when))
			end
		end
	end

	reply[size + 1] = granted
	size = size + 1
	local whole = 0
	for i = 1, total do
		local limit = limits[i]
		local used, units = limit.used, limit.units
		if choose and i == 2 then
			cost = cost + limits[1].units
		end
		reply[size + 1] = used
		reply[size + 2] = cost > units - used and cost <= units and wait(limit, cost) or 0
		reply[size + 3] = used > 0 and wait(limit, units) or 0
		if op == 'w' and granted > 0 then
			reply[size + 2] = turn
		end
		size = size + 3
		if fields > 3 then
			size = size + 1
			reply[size] = used > 0 and limit.rest or 0
		end
		if smallest > units - used then
			whole = math.max(whole, wait(limit, smallest))
		end
	end
	if total > 1 then
		size = size + 1
		reply[size] = whole
	end
	if op == 'l' then
		reply[size + 1] = granted > 0 and term or 0
		reply[size + 2] = granted > 0 and when or 0
		size = size + 2
	elseif op == 'w' then
		size = size + 1
		reply[size] = granted > 0 and now or 0
	end
	if choose then
		reply[size + 1], reply[size + 2] = answer[1], answer[2]
		size = size + 2
	end
end
return reply
