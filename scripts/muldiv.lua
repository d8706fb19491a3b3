-- a * b / c in whole numbers, exact where a * b is above 2^53 and so no number of Lua's.
--
-- muldiv(a, b, c) gives floor(a * b / c) and the remainder, a * b modulo c, for integers a and
-- b of 0 to 2^53 and c of 1 to 2^53. A quotient above 2^53 is given as 2^53; the remainder is
-- right then too. At most 53 rounds, one for each binary digit of the smaller factor.

local MULDIV_MAX = 9007199254740992 -- 2^53

local function muldiv(a, b, c)
	local product = a * b
	if product < MULDIV_MAX then
		local rest = product % c
		return (product - rest) / c, rest
	end
	local least, most = math.min(a, b), math.max(a, b)
	-- most = whole * c + part. The digits of least, the highest first: double what there is, and
	-- add most for a 1. No rest and no part reaches c, and twice a rest is even: all exact.
	local part = most % c
	local whole = (most - part) / c
	local bit, quotient, rest = 1, 0, 0
	while bit * 2 <= least do
		bit = bit * 2
	end
	while bit >= 1 do
		quotient = quotient * 2
		rest = rest * 2
		if rest >= c then
			rest = rest - c
			quotient = quotient + 1
		end
		if least >= bit then
			least = least - bit
			quotient = quotient + whole
			if rest >= c - part then -- rest + part may have no exact sum
				rest = rest - (c - part)
				quotient = quotient + 1
			else
				rest = rest + part
			end
		end
		quotient = math.min(quotient, MULDIV_MAX)
		bit = bit / 2
	end
	return quotient, rest
end
