-- Three colours (RFC 2697): two token buckets of one rate. The first is the committed one. Tokens fill it before the
-- excess bucket, so both together are a bucket, too, the second here: of their whole size, charged by whatever
-- is let through. What's out of it and not of the committed one is out of the excess bucket.
--
-- answer  the colour of the call (of a call of one unit, if it asks for none): 1 green, 2 yellow, 3 red; units out of the
--         excess bucket

-- Units out of the excess bucket, rounded up. Fewer may be out of both than of the committed one if a key was lost or
-- the clock was set back.
local function excess()
	local committed, both = limits[1], limits[2]
	return math.max(0, both.whole - committed.whole + (both.part > committed.part and 1 or 0))
end

choose = function(op, n)
	local committed, both = limits[1], limits[2]
	local granted, colour = 0, 3
	if op == 'r' then
		local back = math.min(n, excess()) -- of the excess first, as nobody knows whose they were
		if back > 0 then
			if back == excess() then -- and no part of a token more
				both.whole, both.part = committed.whole + back, committed.part
			end
			charge(both, -back)
		end
		local rest = math.min(n - back, committed.used)
		if rest > 0 then
			charge(committed, -rest)
			charge(both, -rest)
		end
		granted = back + rest
	end
	local cost = op == 'a' and n or 1
	local green, yellow = committed.units - committed.used, both.units - committed.units - excess()
	if cost <= green then
		colour = 1
	elseif cost <= yellow then
		colour = 2
	end
	if (op == 'a' or op == 'u') and colour < 3 then
		granted = n
		if op == 'u' then
			granted = math.min(n, colour == 1 and green or yellow)
		end
		if colour == 1 then
			charge(committed, granted)
		end
		charge(both, granted)
	elseif op == 'a' or op == 'u' then
		mend(committed)
		mend(both)
	end
	answer[1], answer[2] = colour, excess()
	return granted
end
